"""Stored texts: what is stored is found, and what is not changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.evaluate import evaluate_design
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import Replay, replay
from draftgauge.judging.splits import Design
from draftgauge.policies.lookup import TextLookup
from draftgauge.policies.ngrams import StoredTexts, with_stored
from draftgauge.policies.spec import make_policy
from draftgauge.traces.trace import Trace
from linear_costs import curve
from synthetic import repeating_trace

GAMMA_MAX = 6


def stored_answers(trace: Trace) -> StoredTexts:
    """The very outputs of a trace."""
    return StoredTexts([part.tolist() for part in np.split(trace.token, trace.offsets[1:-1])])


def test_what_is_stored_is_found_and_what_is_not_changes_nothing() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs = curve(0.1)

    def outcome(stored: StoredTexts | None) -> Replay:
        policy = TextLookup(2, 6)
        if stored is not None:
            with_stored([policy], stored)
        return replay(trace, policy)

    alone = outcome(None)
    for without in (StoredTexts([]), StoredTexts([[500, 501] * 9])):  # tokens that the trace does not know
        np.testing.assert_array_equal(outcome(without).record.accepted, alone.record.accepted)
    assert outcome(stored_answers(trace)).tokens_per_step > 1.5 * alone.tokens_per_step
    without = hindsight_optimum(trace, costs, text=True).tokens_per_second
    assert hindsight_optimum(trace, costs, True, stored_answers(trace)).tokens_per_second > without


def test_policies_that_look_nothing_up_take_no_datastore() -> None:
    stored = StoredTexts([[1, 2, 3]])
    with pytest.raises(DraftgaugeError, match="looks tokens up"):
        with_stored([make_policy("fixed:2", 4)], stored)
    with_stored([make_policy("fixed:2", 4), make_policy("lookup", 4)], stored)


def test_bounds_look_in_the_stored_texts_too() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs, policy, stored = curve(0.1), TextLookup(2, 6), stored_answers(trace)
    with_stored([policy], stored)
    rows = evaluate_design(Design("all", trace, None), costs, {"lookup": policy}, stored=stored)
    found = {str(row["policy"]): row["tokens_per_second"] for row in rows if row["task"] == "all"}
    bound = hindsight_optimum(trace, costs, True, stored).tokens_per_second
    assert found["lookup"] <= found["hindsight-two-sources"] == pytest.approx(bound)
