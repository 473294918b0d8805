"""Fitting the rule of two sources recovers what made the traces, and what it writes is what it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.fitting import tail as tail_fitting
from draftgauge.fitting import two_source as fitting
from draftgauge.fitting.registry import FitOptions, fit_policy
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.fitting.tail import TailExamples, tail_examples, token_scale
from draftgauge.fitting.two_source import KAPPAS, fit_two_source
from draftgauge.policies.acceptance_model import TokenOffsets
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.fitted import FittedPolicy, fitted_policy, load_fitted, save_fitted
from draftgauge.policies.registry import make_policy
from draftgauge.policies.suffix import ORDER
from draftgauge.policies.tail_model import TailByOrder, TailShared
from draftgauge.policies.two_source import TwoSource
from draftgauge.policies.two_source_rule import TwoSourceNumbers
from draftgauge.replaying.simulate import replay, text_runs
from draftgauge.traces.build import take
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace
from linear_costs import curve
from synthetic import repeating_trace, sampled_trace
from two_source_numbers import random_numbers

GAMMA_MAX = 6


def tokens_per_second(trace: Trace, fitted: FittedPolicy, costs: CostCurve) -> float:
    return replay(trace, fitted_policy(fitted, GAMMA_MAX, costs), costs).tokens_per_second


def alone(fitted: FittedPolicy, source: str) -> FittedPolicy:
    return replace(fitted, parameters={**fitted.parameters, "sources": source})


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    """Traces whose text repeats itself, of other prompts to fit and to judge on."""
    return (
        repeating_trace(0, prompts=16, length=90, gamma_max=GAMMA_MAX, vocabulary=12),
        repeating_trace(1, prompts=16, length=90, gamma_max=GAMMA_MAX, vocabulary=12),
    )


@pytest.fixture(scope="module")
def fitted(traces: tuple[Trace, Trace]) -> FittedPolicy:
    return fit_two_source([traces[0]], [curve(0.1)], provenance={"why": "test"})


def test_both_sources_gain_over_each_alone_on_prompts_never_seen(traces, fitted: FittedPolicy) -> None:
    test, costs = traces[1], curve(0.1)
    both = tokens_per_second(test, fitted, costs)
    assert both > 1.02 * tokens_per_second(test, fit_stopping([traces[0]], [costs]), costs)
    for source in ("model", "text"):
        assert both > 0.99 * tokens_per_second(test, alone(fitted, source), costs)
    assert fitted.parameters["kappa"] in KAPPAS


def test_another_cost_curve_moves_the_sources_without_fitting_again(traces, fitted: FittedPolicy) -> None:
    test = traces[1]
    dear, cheap = (curve(drafting) for drafting in (3.0, 0.01))
    outcomes = [replay(test, fitted_policy(fitted, GAMMA_MAX, costs), costs) for costs in (dear, cheap)]
    assert outcomes[0].drafted.sum() == 0
    assert outcomes[0].accepted_text.sum() > 100
    assert outcomes[1].drafted.sum() > 300
    unverified = curve(0.1, verifying=5.0)
    nothing = replay(test, fitted_policy(fitted, GAMMA_MAX, unverified), unverified)
    assert nothing.appended.sum() == 0


def test_chances_of_the_tail_are_calibrated(traces, fitted: FittedPolicy) -> None:
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters)
    examples = tail_examples(traces[1], numbers.stopping, None)
    blocks = np.array(numbers.tail.by_order).reshape(-1)
    weights = np.concatenate([blocks, numbers.tail.shared])
    assert examples.terms.shape[1] == len(weights)
    of_token = [
        TokenOffsets(numbers.tail.tokens, offsets).at(tokens)
        for offsets, tokens in (
            (numbers.tail.token_after, examples.before),
            (numbers.tail.token_foretold, examples.token),
        )
    ]
    predicted = 1 / (1 + np.exp(-(examples.terms @ weights + sum(of_token))))
    order = (examples.terms[:, : ORDER * len(TailByOrder._fields) : len(TailByOrder._fields)] > 0).argmax(axis=1) + 1
    for length in range(1, ORDER + 1):
        own = order == length
        assert own.sum() > 200
        assert predicted[own].mean() == pytest.approx(examples.stood[own].mean(), abs=0.1)
    confident = predicted > np.median(predicted)
    assert examples.stood[confident].mean() > examples.stood[~confident].mean() + 0.2


def test_examples_are_the_tokens_that_would_be_judged(traces, fitted: FittedPolicy) -> None:
    trace = traces[0]
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters)
    examples = tail_examples(trace, numbers.stopping, None)
    runs = text_runs(trace)
    reached = trace.accepted[:, None] >= np.arange(GAMMA_MAX + 1)
    drafted = trace.drafted[:, None] >= np.arange(GAMMA_MAX + 1)
    room = (trace.max_new_tokens - 1 - _positions(trace))[:, None] >= np.arange(GAMMA_MAX + 1)
    assert examples.stood.sum() == runs[reached & drafted & room].sum()


def _positions(trace: Trace) -> np.ndarray:
    return np.concatenate([np.arange(n) for n in np.diff(trace.offsets)])


def test_the_file_gives_the_same_policy(traces, fitted: FittedPolicy, tmp_path: Path) -> None:
    costs = curve(0.1)
    save_fitted(fitted, tmp_path / "p.json")
    loaded = load_fitted(tmp_path / "p.json")
    here, there = (replay(traces[1], fitted_policy(f, GAMMA_MAX, costs), costs) for f in (fitted, loaded))
    for name in ("drafted", "appended", "accepted"):
        np.testing.assert_array_equal(getattr(here.record, name), getattr(there.record, name))
    np.testing.assert_array_equal(here.seconds, there.seconds)
    policy = fitted_policy(loaded, GAMMA_MAX, costs)
    assert isinstance(policy, TwoSource)
    assert all(seconds > 0 for seconds in (policy.decision.token, policy.decision.reading, policy.decision.committed))


def test_what_cannot_be_fitted_says_why() -> None:
    sampled = sampled_trace(0, prompts=8, length=20, gamma_max=GAMMA_MAX)
    with pytest.raises(TraceError, match="recorded at temperature 0"):
        fit_two_source([sampled], [curve(0.1)])
    with pytest.raises(DraftgaugeError, match="leave out --online"):
        fit_policy("two-source", [sampled], [curve(0.1)], FitOptions(online=True))


def made_up_examples(effect: float) -> TailExamples:
    """Tokens of which half are always copied, by so much; each prompt has words of its own besides."""
    rng, count = np.random.default_rng(0), 4000
    token, before, prompt = (rng.integers(0, most, count) for most in (30, 30, 16))
    of_prompt = 1.5 * rng.standard_normal((16, 30))[prompt, token]  # which says nothing of other prompts
    logits = effect * np.where(token % 2, 1.0, -1.0) + of_prompt
    terms = np.zeros((count, ORDER * len(TailByOrder._fields) + len(TailShared._fields)))
    terms[:, 0] = 1.0
    stood = rng.random(count) < 1 / (1 + np.exp(-logits))
    return TailExamples(terms, token, before, prompt, stood, np.ones(count, np.bool_))


def test_single_tokens_count_where_they_say_something_of_other_prompts() -> None:
    told, untold = made_up_examples(2.0), made_up_examples(0.0)
    assert token_scale(told) >= 1.0
    assert token_scale(untold) <= 0.5
    few = told._replace(prompt=told.prompt % 3)
    assert token_scale(few) == 0.0  # too few prompts to tell


def test_a_policy_of_another_vocabulary_knows_no_tokens(fitted: FittedPolicy) -> None:
    tail = from_mapping(TwoSourceNumbers, bundled_policy("two-source").parameters).tail
    assert tail.tokens
    assert len(tail.tokens) == len(tail.token_after) == len(tail.token_foretold)
    ours, others = (
        make_policy("two-source", 6, replace(curve(0.1), vocabulary=vocabulary))
        for vocabulary in (bundled_policy("two-source").parameters["stopping"]["vocabulary"], "another")
    )
    assert isinstance(ours, TwoSource)
    assert isinstance(others, TwoSource)
    assert ours.tail.foretold.of
    assert not others.tail.foretold.of
    assert not others.tail.after.of


def test_what_a_policy_did_is_told_by_its_steps(traces) -> None:
    trace, numbers, costs = traces[0], random_numbers(3), curve(0.1, 0.1)
    record = replay(trace, TwoSource(numbers, GAMMA_MAX, costs)).record
    done, rows = fitting._done(numbers, trace, costs), record.rows(trace)
    assert record.trimmed.sum() > 10
    np.testing.assert_array_equal(done.drafted[rows], record.drafted)
    np.testing.assert_array_equal(done.kept[rows], record.drafted - record.trimmed)
    np.testing.assert_array_equal(done.tail[rows], record.appended > 0)
    elsewhere = np.delete(np.arange(trace.positions), rows)
    assert (done.drafted[elsewhere] == -1).all()
    assert not done.tail[elsewhere].any()


def test_kept_steps_are_of_all_traces_evenly(traces) -> None:
    rows = [np.arange(start, trace.positions, 3) for start, trace in zip((0, 1), traces, strict=True)]
    kept = fitting._kept(random_numbers(3), traces, rows)
    accepted = np.concatenate([trace.accepted[own] for trace, own in zip(traces, rows, strict=True)])
    runs = np.concatenate([text_runs(trace)[own] for trace, own in zip(traces, rows, strict=True)])
    chosen = np.linspace(0, len(accepted) - 1, fitting.KEPT_STEPS).astype(np.int64)
    assert len(accepted) > fitting.KEPT_STEPS
    assert kept.stopping.accepted == tuple(accepted[chosen].tolist())
    assert kept.runs == tuple(map(tuple, runs[chosen].tolist()))


def test_a_prompt_of_several_traces_is_left_out_of_all_of_them(traces, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[TailExamples] = []
    monkeypatch.setattr(tail_fitting, "token_scale", lambda examples: noted.append(examples) or 0.0)
    backwards = take(traces[0], np.arange(len(traces[0].prompts))[::-1])
    for given in ([traces[0]], [traces[0], backwards]):
        tail_fitting.fit_tail(given, random_numbers(3).stopping, None)
    one, both = (np.bincount(examples.prompt) for examples in noted)
    np.testing.assert_array_equal(both, 2 * one)


def test_chances_of_the_tail_are_right_where_the_policy_appends(traces) -> None:
    trace, numbers, costs = traces[0], random_numbers(3), curve(0.1)
    done = fitting._done(numbers, trace, costs)
    fitted = tail_fitting.fit_tail([trace], numbers.stopping, [done])
    examples = tail_examples(trace, numbers.stopping, done)
    weights = np.concatenate([np.array(fitted.by_order).reshape(-1), fitted.shared])
    of_tokens = TokenOffsets(fitted.tokens, fitted.token_after).at(examples.before)
    of_tokens += TokenOffsets(fitted.tokens, fitted.token_foretold).at(examples.token)
    predicted = 1 / (1 + np.exp(-(examples.terms @ weights + examples.token_share * of_tokens)))
    visited = examples.visited
    assert 0.02 < visited.mean() < 0.98
    assert predicted[visited].mean() == pytest.approx(examples.stood[visited].mean(), abs=1e-3)
