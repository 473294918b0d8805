"""Stored texts: the longer match counts, one at a time as for whole traces, and nothing later is known earlier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy, StepCosts
from draftgauge.policies.lookup import TextLookup
from draftgauge.policies.registry import make_policy
from draftgauge.policies.stored_policies import with_stored
from draftgauge.policies.stored_texts import BackedIndex, StoredTexts
from draftgauge.policies.suffix import ORDER, Match
from draftgauge.policies.two_source import TwoSource
from draftgauge.replaying.evaluate import BOUNDS, evaluate_design
from draftgauge.replaying.hindsight import Sources, hindsight_optimum
from draftgauge.replaying.simulate import replay
from draftgauge.replaying.splits import Design
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from synthetic import repeating_trace
from two_source_numbers import GAMMA_MAX, random_numbers

VOCABULARY = 5


def stored_texts(seed: int, count: int = 3, vocabulary: int = VOCABULARY) -> StoredTexts:
    rng = np.random.default_rng(seed)
    return StoredTexts([rng.integers(0, vocabulary, rng.integers(0, 25)).tolist() for _ in range(count)], 0.01)


def followers(texts: list[list[int]], ending: list[int]) -> list[int]:
    """All tokens that followed an ending, text by text."""
    size = len(ending)
    return [text[at] for text in texts for at in range(size, len(text)) if text[at - size : at] == ending]


def spelled_out(texts: list[list[int]], tail: list[int], least: int = 1) -> Match:
    """The longest match of at least so many tokens by going over the texts."""
    for order in range(min(ORDER, len(tail)), least - 1, -1):
        found = followers(texts, tail[-order:])
        if found:
            streak = 0
            while streak < len(found) and found[-1 - streak] == found[-1]:
                streak += 1
            return Match(found[-1], order, min(streak, 15), min(len(found), 15))
    return Match()


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(0, 30))
def test_the_longer_match_counts_and_the_texts_own_among_equals(seed: int, vocabulary: int, length: int) -> None:
    stored = stored_texts(seed, vocabulary=vocabulary)
    texts = [text.tolist() for text in stored.texts]
    rng = np.random.default_rng(seed)
    own = rng.integers(0, vocabulary, length).tolist()
    index = BackedIndex(stored)
    index.read(own)
    for _ in range(5):
        tail = (own + rng.integers(0, vocabulary, rng.integers(0, 4)).tolist())[-ORDER:]
        first = spelled_out([own], tail)
        longer = spelled_out(texts, tail, first.order + 1)
        assert index.match(tuple(tail)) == (longer if longer.order else first)


def test_no_text_goes_on_into_the_next_and_the_last_one_counts() -> None:
    index = BackedIndex(StoredTexts([[1, 2, 3], [4, 2, 5, 6], [], [7]]))
    assert index.look_up((2,)) == (5, 1)
    assert index.look_up((1, 2)) == (3, 2)
    assert index.look_up((3,)) == (-1, 0)
    assert index.look_up((6,)) == (-1, 0)
    assert index.continuation(3) == []
    index.read([9, 2])
    assert index.continuation(3) == [5, 6]
    index.commit([8, 2])  # an own match of one token comes before a stored one
    assert index.continuation(1) == [8]


class Asked:
    """A policy without the form that decides for all positions at once."""

    def __init__(self, inner: Policy) -> None:
        for name in ("reads", "read", "decision", "reset", "limit", "keep_drafting", "trims", "extend", "observe"):
            if hasattr(inner, name):
                setattr(self, name, getattr(inner, name))


def cost_curve() -> CostCurve:
    draft, verify = (tuple(first + step * n for n in range(GAMMA_MAX + 1)) for first, step in ((0.0, 0.1), (1.0, 0.02)))
    return CostCurve((100,), (verify,), (draft,), (1.0,), "none", "cpu", "float32")


def policies(seed: int, costs: StepCosts) -> list[Policy]:
    return [
        TwoSource(random_numbers(seed), GAMMA_MAX, costs),
        TwoSource(random_numbers(seed, sources="text"), GAMMA_MAX, costs),
        TextLookup(2, 4),
        make_policy("lookup-else-stopping:least=2,tokens=4", GAMMA_MAX, costs),
    ]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_asked_token_by_token_and_at_once_they_do_the_same(seed: int) -> None:
    trace = repeating_trace(seed, prompts=3, length=40, gamma_max=GAMMA_MAX, vocabulary=VOCABULARY + 4)
    costs, stored = LinearCosts(drafting=0.1, verifying=0.02), stored_texts(seed, count=6, vocabulary=VOCABULARY + 6)
    for policy in policies(seed, costs):
        with_stored([policy], stored)
        at_once, asked = replay(trace, policy).record, replay(trace, Asked(policy)).record
        for name in ("prompt", "position", "drafted", "appended", "accepted", "committed"):
            np.testing.assert_array_equal(getattr(at_once, name), getattr(asked, name), err_msg=name)


def stored_answers(trace: Trace) -> StoredTexts:
    """The very outputs of a trace."""
    return StoredTexts([part.tolist() for part in np.split(trace.token, trace.offsets[1:-1])])


def test_what_is_stored_is_found_and_what_is_not_changes_nothing() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs = cost_curve()

    def outcome(stored: StoredTexts | None):
        policy = TextLookup(2, 6)
        if stored is not None:
            with_stored([policy], stored)
        return replay(trace, policy)

    alone = outcome(None)
    for without in (StoredTexts([]), StoredTexts([[500, 501] * 9])):  # tokens that the trace does not know
        np.testing.assert_array_equal(outcome(without).record.accepted, alone.record.accepted)
    assert outcome(stored_answers(trace)).tokens_per_step > 1.5 * alone.tokens_per_step
    again = outcome(None)  # what was derived with stored texts is not taken for what is known without
    np.testing.assert_array_equal(again.record.accepted, alone.record.accepted)
    for sources in (Sources.TEXT, Sources.BOTH):
        bound = hindsight_optimum(trace, costs, sources, stored_answers(trace))
        assert bound.tokens_per_second > hindsight_optimum(trace, costs, sources).tokens_per_second


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), cut=st.integers(5, 35))
def test_what_comes_later_in_an_output_changes_no_step_before(seed: int, cut: int) -> None:
    trace = repeating_trace(seed, prompts=1, length=40, gamma_max=GAMMA_MAX, vocabulary=VOCABULARY)
    rng = np.random.default_rng(seed)
    changed = replace(trace, token=trace.token.copy())
    changed.token[cut:] = rng.integers(0, VOCABULARY, len(trace.token) - cut)
    stored, costs = stored_texts(seed, count=6), LinearCosts(drafting=0.1)
    for policy in policies(seed, costs):
        with_stored([policy], stored)
        before = []
        for each in (trace, changed):
            record = replay(each, policy).record
            reached = record.position + record.drafted + record.appended < cut
            first = len(reached) if reached.all() else int(reached.argmin())
            before.append((record.drafted[:first].tolist(), record.appended[:first].tolist(), first))
        count = min(first for _, _, first in before)
        assert before[0][0][:count] == before[1][0][:count]
        assert before[0][1][:count] == before[1][1][:count]


def test_look_ups_are_charged() -> None:
    trace = repeating_trace(2, prompts=3, length=50, gamma_max=GAMMA_MAX, vocabulary=VOCABULARY)
    costs = cost_curve()
    for made in zip(policies(3, costs), policies(3, costs), strict=True):
        texts = stored_texts(4).texts
        for policy, seconds in zip(made, (0.0, 0.25), strict=True):
            with_stored([policy], StoredTexts(texts, seconds))
        free, dear = (replay(trace, policy, costs) for policy in made)
        looked_up = len(free.record.drafted) + free.drafted.sum() + free.appended.sum()
        assert dear.seconds.sum() == pytest.approx(free.seconds.sum() + 0.25 * looked_up)


def test_policies_that_look_nothing_up_take_no_datastore() -> None:
    stored = StoredTexts([[1, 2, 3]])
    with pytest.raises(DraftgaugeError, match="looks tokens up"):
        with_stored([make_policy("fixed:2", 4)], stored)
    with_stored([make_policy("fixed:2", 4), make_policy("lookup", 4)], stored)


def test_bounds_look_in_the_stored_texts_that_policies_look_in() -> None:
    trace = repeating_trace(1, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=40)
    costs, policy, stored = cost_curve(), TextLookup(2, 6), stored_answers(trace)
    with_stored([policy], stored)
    found = {
        str(row["policy"]): row["tokens_per_second"]
        for row in evaluate_design(Design("all", trace, None), costs, lambda given: {"lookup": policy})
        if row["task"] == "all"
    }
    for name, sources in BOUNDS.items():
        known = None if sources is Sources.MODEL else stored
        assert found[name] == pytest.approx(hindsight_optimum(trace, costs, sources, known).tokens_per_second)
    assert found["lookup"] <= found["hindsight-text"]
