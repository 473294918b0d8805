"""Fitting throughput-optimal stopping recovers what made the trace, and what it writes is what it runs."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.judging.fitting import accepted_by_depth, fit_stopping, judged_tokens
from draftgauge.judging.replay import best_fixed_gamma, replay, replay_fixed_all
from draftgauge.policies.fitted import fitted_policy
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.traces.trace import Trace, draft_caps
from linear_costs import curve
from synthetic import sampled_trace, synthetic_trace

GAMMA_MAX = 6


@pytest.fixture(scope="module")
def traces() -> tuple[Trace, Trace]:
    """Traces whose confidence says how likely a token is accepted, of other prompts to fit and to judge on."""
    train, test = (synthetic_trace(seed, prompts=24, length=120, gamma_max=GAMMA_MAX) for seed in (0, 1))
    return train, test


@pytest.mark.parametrize("drafting", [0.05, 0.2])
def test_it_gains_over_the_best_fixed_length_on_prompts_never_seen(traces, drafting: float) -> None:
    train, test = traces
    costs = curve(drafting)
    policy = fitted_policy(fit_stopping([train], [costs]), GAMMA_MAX, costs)
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


def test_chances_are_calibrated(traces) -> None:
    train, test = traces
    policy = fitted_policy(fit_stopping([train], [curve(0.1)]), GAMMA_MAX, curve(0.1))
    assert isinstance(policy, ThroughputStopping)
    judged = judged_tokens(test)
    predicted = policy.chance(test.confidence[judged].astype(np.float64))
    accepted = (np.arange(1, GAMMA_MAX + 1) <= test.accepted[:, None])[judged]
    assert predicted.mean() == pytest.approx(accepted.mean(), abs=0.05)
    confident = predicted > np.median(predicted)
    assert accepted[confident].mean() > accepted[~confident].mean() + 0.1


def test_what_is_learned_from_are_the_tokens_that_a_step_would_have_judged(traces) -> None:
    train, _ = traces
    judged, accepted = np.zeros((2, GAMMA_MAX), np.int64)
    for right, most in zip(train.accepted.tolist(), draft_caps(train).tolist(), strict=True):
        judged[: min(right + 1, most)] += 1
        accepted[: min(right, most)] += 1
    assert accepted_by_depth([train]) == pytest.approx((accepted + 1) / (judged + 2), abs=1e-4)
    assert accepted_by_depth([train, train]) == pytest.approx((2 * accepted + 1) / (2 * judged + 2), abs=1e-4)


def test_it_is_fitted_on_sampled_decoding_too() -> None:
    trace = sampled_trace(0, prompts=8, length=60, gamma_max=GAMMA_MAX)
    costs = curve(0.1)
    policy = fitted_policy(fit_stopping([trace], [costs]), GAMMA_MAX, costs)
    assert replay(trace, policy, costs).tokens_per_second > 0
