"""Fitting the rule of two sources recovers what made the traces, and what it writes is what it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import TraceError
from draftgauge.judging.fitting import TAIL_WEIGHTS, _examples, fit_stopping, fit_two_source
from draftgauge.judging.hindsight import text_runs
from draftgauge.judging.replay import replay
from draftgauge.policies.fitted import FittedPolicy, fitted_policy
from draftgauge.policies.spec import make_policy
from draftgauge.policies.two_source import TwoSource, TwoSourceNumbers
from draftgauge.traces.trace import Trace, draft_caps
from linear_costs import curve
from synthetic import repeating_trace, sampled_trace

GAMMA_MAX = 6


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    """Traces whose text repeats itself, of other prompts to fit and to judge on."""
    train, test = (repeating_trace(seed, prompts=16, length=90, gamma_max=GAMMA_MAX, vocabulary=12) for seed in (0, 1))
    return train, test


@pytest.fixture(scope="module")
def fitted(traces: tuple[Trace, Trace]) -> FittedPolicy:
    return fit_two_source([traces[0]], [curve(0.1)])


def test_both_sources_gain_over_each_alone_on_prompts_never_seen(traces, fitted: FittedPolicy) -> None:
    test, costs = traces[1], curve(0.1)

    def speed(policy) -> float:
        return replay(test, policy, costs).tokens_per_second

    both = speed(fitted_policy(fitted, GAMMA_MAX, costs))
    assert both > 1.02 * speed(fitted_policy(fit_stopping([traces[0]], [costs]), GAMMA_MAX, costs))
    for spec in ("lookup:least=1,tokens=6", "lookup:least=2,tokens=4", "lookup:least=3,tokens=2"):
        assert both > speed(make_policy(spec, GAMMA_MAX, costs))
    assert fitted.parameters["tail_weight"] in TAIL_WEIGHTS


def test_chances_of_looked_up_tokens_are_calibrated(traces, fitted: FittedPolicy) -> None:
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters)
    terms = _examples(traces[1])[1]
    lookup = numbers.lookup
    logits = lookup.constant + terms[:, :-1] @ [lookup.log_matched, lookup.log_streak, lookup.always]
    predicted, right = 1 / (1 + np.exp(-logits)), terms[:, -1] > 0
    assert predicted.mean() == pytest.approx(right.mean(), abs=0.05)
    confident = predicted > np.median(predicted)
    assert right[confident].mean() > right[~confident].mean() + 0.05


def test_examples_are_the_tokens_that_would_be_judged(traces) -> None:
    trace = traces[0]
    drafted, looked_up = _examples(trace)
    judged = np.minimum(trace.accepted + 1, draft_caps(trace))
    assert len(drafted) == judged.sum()
    assert drafted[:, -1].sum() == np.minimum(trace.accepted, draft_caps(trace)).sum()
    runs = text_runs(trace)
    depths = np.arange(GAMMA_MAX + 1) <= trace.accepted[:, None]
    right = looked_up[:, -1].sum()  # where nothing is drafted, copying a whole span may be right for longer
    assert runs[:, 1:][depths[:, 1:]].sum() < right <= runs[depths].sum()
    assert (looked_up[:, -1] == 0).sum() <= depths.sum()


def test_dropping_the_last_token_pays_where_verification_is_expensive() -> None:
    trace, costs = repeating_trace(2, prompts=16, length=90, gamma_max=GAMMA_MAX, vocabulary=20), curve(0.02, 0.1)
    fitted = fit_two_source([trace], [costs])

    class Whole(TwoSource):
        def drops_last(self) -> bool:
            return False

    whole = replay(trace, Whole(from_mapping(TwoSourceNumbers, fitted.parameters), costs), costs)
    outcome = replay(trace, fitted_policy(fitted, GAMMA_MAX, costs), costs)
    assert outcome.dropped.sum() > 10
    assert whole.dropped.sum() == 0
    assert outcome.tokens_per_second > whole.tokens_per_second


def test_a_drafter_that_is_not_worth_its_time_is_never_asked(traces) -> None:
    dear = curve(2.0)
    fitted = fit_two_source([traces[0]], [dear])
    assert fitted.parameters["accepted_by_depth"] == [0.0] * GAMMA_MAX
    outcome = replay(traces[1], fitted_policy(fitted, GAMMA_MAX, dear), dear)
    assert outcome.drafted.sum() == 0 < outcome.appended.sum()
    others = (make_policy(spec, GAMMA_MAX, dear) for spec in ("fixed:1", "lookup:least=2,tokens=4"))
    assert outcome.tokens_per_second > max(replay(traces[1], other, dear).tokens_per_second for other in others)


def test_what_cannot_be_fitted_is_said(traces) -> None:
    train, costs = traces[0], curve(0.1)
    with pytest.raises(TraceError, match="does not hold the target's chances"):
        fit_two_source([sampled_trace(1, prompts=2, length=9, gamma_max=GAMMA_MAX)], [costs])
    unread = replace(train, prompts=tuple(replace(prompt, prompt_token=()) for prompt in train.prompts))
    with pytest.raises(TraceError, match="lacks the prompt tokens of 16 of 16"):
        fit_two_source([unread], [costs])
    distinct = replace(train, token=np.arange(100, 100 + train.positions, dtype=np.int32))
    distinct = replace(distinct, prompts=tuple(replace(p, prompt_tokens=0, prompt_token=()) for p in train.prompts))
    with pytest.raises(TraceError, match="no words occur twice"):
        fit_two_source([distinct], [costs])
