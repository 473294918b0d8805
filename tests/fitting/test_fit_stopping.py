"""Fitting throughput-optimal stopping recovers what made the trace, and what it writes is what it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import TraceError
from draftgauge.fitting import stopping as fitting
from draftgauge.fitting.continuation import fit_continuation
from draftgauge.fitting.decision_times import TIMED_LENGTH
from draftgauge.fitting.logistic import mean_shift
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.policies.acceptance_model import StoppingNumbers, decision_seconds
from draftgauge.policies.base import DecisionSeconds
from draftgauge.policies.fitted import fitted_policy, load_fitted, save_fitted
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import replay, replay_fixed_all
from draftgauge.replaying.views import text_view
from draftgauge.traces.costs import CostCurve
from judged_tokens import judged, starts, visited
from linear_costs import curve as linear_curve
from synthetic import synthetic_trace
from two_source_numbers import random_numbers

GAMMA_MAX = 8


def curve(drafting: float, verifying: float = 0.0) -> CostCurve:
    return linear_curve(drafting, verifying, GAMMA_MAX)


@pytest.fixture(scope="module")
def traces():
    """Traces whose confidence says how likely a token is accepted, of other prompts to fit and to judge on."""
    return synthetic_trace(seed=0, prompts=24, length=120, gamma_max=GAMMA_MAX), synthetic_trace(
        seed=1, prompts=24, length=120, gamma_max=GAMMA_MAX
    )


@pytest.mark.parametrize("drafting", [0.05, 0.2])
def test_it_gains_over_the_best_fixed_length_on_prompts_never_seen(traces, drafting: float) -> None:
    train, test = traces
    costs = curve(drafting)
    fitted = fit_stopping([train], [costs])
    policy = fitted_policy(fitted, GAMMA_MAX, costs)
    fixed = replay_fixed_all(test, costs)[best_fixed_gamma(train, costs)]
    assert replay(test, policy, costs).tokens_per_second > 1.03 * fixed.tokens_per_second


def test_another_cost_curve_moves_the_lengths_without_fitting_again(traces) -> None:
    train, test = traces
    fitted = fit_stopping([train], [curve(0.05)])
    mean = [
        float(replay(test, fitted_policy(fitted, GAMMA_MAX, curve(d)), curve(d)).record.drafted.mean())
        for d in (0.02, 0.1, 0.4)
    ]
    assert mean[0] > mean[1] > mean[2]
    # Where a draft token costs as much as three verifications nothing pays, and nothing is drafted.
    assert replay(test, fitted_policy(fitted, GAMMA_MAX, curve(3.0)), curve(3.0)).drafted.sum() == 0


def test_leaving_tokens_out_pays_where_their_verification_costs(traces) -> None:
    train, test = traces
    for verifying, least in ((0.0, 1.0), (0.1, 1.001), (0.3, 1.01)):
        costs = curve(0.02, verifying)
        fitted = fit_stopping([train], [costs])
        assert fitted.parameters["trims"]
        whole = replace(fitted, parameters=fitted.parameters | {"trims": False})
        trimmed, kept = (replay(test, fitted_policy(each, GAMMA_MAX, costs), costs) for each in (fitted, whole))
        assert trimmed.tokens_per_second >= least * kept.tokens_per_second
        assert bool(trimmed.trimmed.sum()) == (verifying > 0)
        assert kept.trimmed.sum() == 0


@pytest.mark.parametrize("chance", [0.01, 0.5, 0.97])
@pytest.mark.parametrize("stood", [1, 6, 9])
def test_the_shift_makes_the_mean_chance_right(chance: float, stood: int) -> None:
    for spread in (0.0, 4.0):
        logits = np.log(chance / (1 - chance)) + spread * np.linspace(-1, 1, 10)
        shift = mean_shift(logits, np.arange(10) < stood)
        assert (1 / (1 + np.exp(-(logits + shift)))).mean() == pytest.approx(stood / 10)
    assert mean_shift(logits, np.ones(10, np.bool_)) == 0.0


def test_hazards_are_calibrated(traces) -> None:
    train, test = traces
    policy = fitted_policy(fit_stopping([train], [curve(0.1)]), GAMMA_MAX, curve(0.1))
    assert isinstance(policy, ThroughputStopping)
    predicted = policy.acceptance(text_view(test))[:, 0]
    known = ~np.isnan(predicted)
    stood = test.accepted[known] >= 1
    assert predicted[known].mean() == pytest.approx(stood.mean(), abs=0.05)
    confident = predicted[known] > np.median(predicted[known])
    assert stood[confident].mean() > stood[~confident].mean() + 0.2


def test_chances_are_right_where_the_policy_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other prompts than it was fitted on, so many that the means of both are alike."""
    train, test = (synthetic_trace(seed, prompts=300, length=120, gamma_max=GAMMA_MAX) for seed in (0, 1))
    costs = curve(0.1)

    def errors(rounds: int) -> tuple[float, float]:
        """Of the mean chances at the starts and of the drafted tokens of the policy's own steps."""
        monkeypatch.setattr(fitting, "ROUNDS", rounds)
        policy = fitted_policy(fit_stopping([train], [costs]), GAMMA_MAX, costs)
        assert isinstance(policy, ThroughputStopping)
        view = text_view(test)
        first = np.repeat(policy.first_chances(view)[:, None], GAMMA_MAX, axis=1)
        found = []
        for predicted, among in (
            (first, starts(test, policy, costs)),
            (policy.acceptance(view), visited(test, policy, costs)),
        ):
            tokens = judged(test, predicted, among)
            assert len(tokens.accepted) > 5000
            found.append(abs(float(tokens.predicted.mean() - tokens.accepted.mean())))
        return found[0], found[1]

    everywhere, decided = errors(1), errors(3)
    assert decided[0] < 0.04
    assert decided[1] < 0.025
    assert decided[0] < everywhere[0] / 4
    assert decided[1] < everywhere[1]


def test_the_file_gives_the_same_policy(traces, tmp_path: Path) -> None:
    train, test = traces
    costs = curve(0.1)
    fitted = fit_stopping([train], [costs], provenance={"why": "test"})
    save_fitted(fitted, tmp_path / "p.json")
    loaded = load_fitted(tmp_path / "p.json")
    json.loads((tmp_path / "p.json").read_text())
    assert loaded.trained_on[:2] == ("code/p0", "math/p1")
    assert loaded.provenance == {"why": "test"}
    here, there = (replay(test, fitted_policy(f, GAMMA_MAX, costs), costs) for f in (fitted, loaded))
    np.testing.assert_array_equal(here.record.drafted, there.record.drafted)
    np.testing.assert_array_equal(here.seconds, there.seconds)


def test_continuation_values_also_gain(traces) -> None:
    train, test = traces
    costs = curve(0.1)
    numbers = from_mapping(StoppingNumbers, fit_stopping([train], [costs]).parameters, "numbers")
    fixed = replay_fixed_all(test, costs)[best_fixed_gamma(train, costs)]
    assert (
        fit_continuation(train, costs, numbers).replay(test, costs).tokens_per_second > 1.02 * fixed.tokens_per_second
    )


def test_what_cannot_be_fitted_is_said(traces) -> None:
    train, _ = traces
    costs = curve(0.1)
    refused = replace(train, accepted=np.zeros_like(train.accepted))
    with pytest.raises(TraceError, match="no accepted and rejected"):
        fit_stopping([refused], [costs])
    shorter = synthetic_trace(seed=2, prompts=4, length=30, gamma_max=4)
    with pytest.raises(TraceError, match="one gamma_max"):
        fit_stopping([train, shorter], [costs, costs])
    unread = replace(train, prompts=tuple(replace(prompt, prompt_token=()) for prompt in train.prompts))
    with pytest.raises(TraceError, match="lacks the prompt tokens of 24 of 24"):
        fit_stopping([unread], [costs])


def test_what_is_learned_from_are_the_tokens_that_a_step_would_have_judged(traces) -> None:
    train, _ = traces
    reached, stood = np.zeros((2, GAMMA_MAX), np.int64)
    for accepted, most in zip(train.accepted.tolist(), draft_caps(train).tolist(), strict=True):
        reached[: min(accepted + 1, most)] += 1
        stood[: min(accepted, most)] += 1
    everywhere = np.full(train.positions, GAMMA_MAX)
    for examples in (fitting.hazard_examples(train, everywhere), fitting.next_examples(train, everywhere)):
        assert (len(examples.stood), examples.stood.sum()) == (reached.sum(), stood.sum())
    onward = fitting.fit_models([train], [everywhere], GAMMA_MAX, recalibrate=False).onward
    assert onward == pytest.approx((stood + 1) / (reached + 2))


def test_the_rate_is_what_the_policy_reaches_over_whole_outputs(traces) -> None:
    train, _ = traces
    costs = curve(0.1, 0.05)
    numbers = from_mapping(StoppingNumbers, fit_stopping([train], [costs]).parameters, "numbers")
    numbers = replace(numbers, decision_seconds=0.0, step_decision_seconds=0.0, reading_seconds=0.0)
    whole, kept = (
        ThroughputStopping(replace(numbers, rate_scale=scale), GAMMA_MAX, costs) for scale in (numbers.rate_scale, 1.0)
    )
    assert whole.rate == pytest.approx(replay(train, kept, costs).tokens_per_second)
    assert abs(numbers.rate_scale - 1) > 1e-3


def test_growing_the_index_is_part_of_what_a_step_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decisions are told by step, at as many committed tokens as were timed."""
    monkeypatch.setattr(fitting, "decision_times", lambda *_: DecisionSeconds(0.001, 0.01, 0.0002, 0.003))
    numbers = fitting.with_decision_times(random_numbers(0).stopping, linear_curve(0.1), 6)
    assert decision_seconds(numbers) == pytest.approx(DecisionSeconds(0.001, 0.01 + TIMED_LENGTH * 0.003, 0.0002))


def test_what_a_token_adds_is_held_by_the_prior() -> None:
    """Six examples at even chances, all of which stood: three more than expected, at a curvature of six quarters."""
    one = np.ones(6, np.bool_)
    examples = fitting.Examples(np.zeros((6, 1)), np.full(6, 2), one, ~one, one)
    for prior in (0.5, 2.0, 20.0):
        found = fitting._token_offsets(examples, np.zeros(2), np.array([1, 2]), prior)
        assert found == pytest.approx((0.0, 3 / (1.5 + prior)), abs=1e-4)
    seldom = examples._replace(visited=~one)
    assert fitting._token_offsets(seldom, np.zeros(2), np.array([2]), 2.0) == pytest.approx((0.75 / 2.375,), abs=1e-4)
