"""Fits recover what made the traces, repeat exactly, and what they write is what they run; misfits are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.judging.fitting import (
    TAIL_WEIGHTS,
    _examples,
    accepted_by_depth,
    fit_logistic,
    fit_speckv,
    fit_stopping,
    fit_two_source,
    judged_tokens,
)
from draftgauge.judging.hindsight import text_runs
from draftgauge.judging.replay import best_fixed_gamma, replay, replay_fixed_all
from draftgauge.policies import Signal, Step, make_policy
from draftgauge.policies.fitted import FittedPolicy, bundled_policy, fitted_policy, load_fitted, save_fitted
from draftgauge.policies.speckv import Network, SpecKV
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.policies.two_source import TwoSource, TwoSourceNumbers
from draftgauge.traces.trace import Trace, draft_caps
from linear_costs import LinearCosts, curve
from synthetic import repeating_trace, sampled_trace, synthetic_trace

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


@pytest.fixture(scope="module")
def foretold() -> tuple[Trace, Trace]:
    """Traces whose confidence says how likely a token is accepted, of other prompts to fit and to judge on."""
    train, test = (synthetic_trace(seed, prompts=24, length=120, gamma_max=GAMMA_MAX) for seed in (0, 1))
    return train, test


@pytest.mark.parametrize("drafting", [0.05, 0.2])
def test_it_gains_over_the_best_fixed_length_on_prompts_never_seen(foretold, drafting: float) -> None:
    train, test = foretold
    costs = curve(drafting)
    policy = fitted_policy(fit_stopping([train], [costs]), GAMMA_MAX, costs)
    fixed = replay_fixed_all(test, costs)[best_fixed_gamma(train, costs)]
    assert replay(test, policy, costs).tokens_per_second > 1.03 * fixed.tokens_per_second


def test_another_cost_curve_moves_the_lengths_without_fitting_again(foretold) -> None:
    train, test = foretold
    fitted = fit_stopping([train], [curve(0.05)])
    mean = [
        float(replay(test, fitted_policy(fitted, GAMMA_MAX, curve(d)), curve(d)).record.drafted.mean())
        for d in (0.02, 0.1, 0.4)
    ]
    assert mean[0] > mean[1] > mean[2]
    # Where a draft token costs as much as three verifications nothing pays, and nothing is drafted.
    assert replay(test, fitted_policy(fitted, GAMMA_MAX, curve(3.0)), curve(3.0)).drafted.sum() == 0


def test_chances_are_calibrated(foretold) -> None:
    train, test = foretold
    policy = fitted_policy(fit_stopping([train], [curve(0.1)]), GAMMA_MAX, curve(0.1))
    assert isinstance(policy, ThroughputStopping)
    judged = judged_tokens(test)
    predicted = policy.chance(test.confidence[judged].astype(np.float64))
    accepted = (np.arange(1, GAMMA_MAX + 1) <= test.accepted[:, None])[judged]
    assert predicted.mean() == pytest.approx(accepted.mean(), abs=0.05)
    confident = predicted > np.median(predicted)
    assert accepted[confident].mean() > accepted[~confident].mean() + 0.1


def test_what_is_learned_from_are_the_tokens_that_a_step_would_have_judged(foretold) -> None:
    train, _ = foretold
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


LONGEST = 8


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(seed=1, prompts=24, length=60, gamma_max=LONGEST)


@pytest.fixture(scope="module")
def speckv(trace: Trace) -> FittedPolicy:
    return fit_speckv([trace])


def test_the_network_predicts_acceptance_and_is_the_same_every_time(trace: Trace, speckv: FittedPolicy) -> None:
    assert fit_speckv([trace]) == speckv
    assert fit_speckv([trace], seed=-1).parameters != speckv.parameters
    scores = speckv.provenance["training"]
    assert scores["mean_squared_error"] < 0.95 * scores["variance"]
    rates = SpecKV(Network(**speckv.parameters["network"]), "uncompressed", LONGEST).rates
    assert rates((0.05, 0.97, 0.1, 0.95)).mean() > rates((3.0, 0.15, 3.5, 0.1)).mean()


def test_it_learns_compression_from_traces_of_several(trace: Trace) -> None:
    # Under nf4 nothing is ever accepted: the network must tell it from int8 by its code alone.
    hopeless = replace(trace, compression="nf4", accepted=np.zeros_like(trace.accepted))
    fitted = fit_speckv([replace(trace, compression="uncompressed"), hopeless])
    network = Network(**fitted.parameters["network"])
    rates = {name: SpecKV(network, name, LONGEST).rates((0.05, 0.97, 0.1, 0.95))[0] for name in ("uncompressed", "nf4")}
    assert rates["uncompressed"] > rates["nf4"] + 0.1
    assert rates["nf4"] < 0.2
    assert fitted.parameters["compression"] == "uncompressed"

    def chosen(compression: str) -> int:
        policy = fitted_policy(fitted, LONGEST, LinearCosts(compression=compression))
        policy.observe(Step(2, 2, 3, (Signal(1, 0.95, 0.1, 0.9), Signal(2, 0.97, 0.05, 0.9))))
        return policy.limit()

    assert chosen("nf4") == chosen("bnb-nf4") == 2 < chosen("uncompressed") == chosen("bf16")
    assert chosen("int8") == chosen("") == chosen("uncompressed")  # none of which it has seen


def test_a_fitted_file_is_the_policy(trace: Trace, speckv: FittedPolicy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save_fitted(speckv, path)
    assert load_fitted(path).parameters == speckv.parameters
    policy = make_policy(str(path), LONGEST)
    assert isinstance(policy, SpecKV)
    drafted = replay(trace, policy).record.drafted.tolist()
    assert drafted == replay(trace, fitted_policy(speckv, LONGEST, None)).record.drafted.tolist()


def test_what_does_not_fit_is_refused(speckv: FittedPolicy) -> None:
    with pytest.raises(DraftgaugeError, match="was fitted for gamma_max 8, the longest draft here is 5"):
        fitted_policy(speckv, 5, None)
    with pytest.raises(
        DraftgaugeError, match=r"was fitted on the signals loudness; this draftgauge has .*: fit it again"
    ):
        fitted_policy(replace(speckv, signals=("loudness",)), LONGEST, None)
    with pytest.raises(DraftgaugeError, match="unknown key 'colour'"):
        fitted_policy(replace(speckv, parameters={**speckv.parameters, "colour": 1}), LONGEST, None)
    network = {**speckv.parameters["network"], "output": [1.0]}
    with pytest.raises(DraftgaugeError, match="tables do not fit together"):
        fitted_policy(replace(speckv, parameters={**speckv.parameters, "network": network}), LONGEST, None)


def test_compressions_that_it_knows() -> None:
    trace = synthetic_trace(seed=1, prompts=4, length=20, gamma_max=8)
    for compression in ("fp32", "bnb-int8", "awq"):
        fitted = fit_speckv([replace(trace, compression=compression)])
        assert fitted_policy(fitted, LONGEST, None).limit() > 0
    with pytest.raises(DraftgaugeError, match="which gptq does not say: name speckv"):
        fit_speckv([replace(trace, compression="gptq")])


def test_traces_that_cannot_be_learned_from_are_refused(trace: Trace) -> None:
    with pytest.raises(TraceError, match="needs a trace of gamma_max 4 or more, not 3"):
        fit_speckv([synthetic_trace(seed=1, prompts=4, length=20, gamma_max=3)])
    for fit in (fit_speckv, fit_stopping, fit_two_source):
        with pytest.raises(TraceError, match=r"one gamma_max, not of \[5, 8\]"):
            fit([trace, synthetic_trace(seed=1, prompts=4, length=20, gamma_max=5)], [])
    with pytest.raises(TraceError, match="too short"):
        fit_speckv([synthetic_trace(seed=1, prompts=3, length=1, gamma_max=8)])


def test_the_bundled_policy_serves_any_longest_draft() -> None:
    assert bundled_policy("speckv").gamma_max == 16
    assert [make_policy("speckv", longest).limit() for longest in (3, 30)] == [3, 4]


def test_it_is_at_the_optimum_whatever_the_order_of_the_examples() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(4000, 12)) * np.linspace(0.1, 30, 12)
    outcomes = rng.random(4000) < expit(terms[:, 0] - 0.5 * terms[:, 2] + 1)
    weights, constant = fit_logistic(terms, outcomes)
    residual = expit(terms @ weights + constant) - outcomes
    scaled = (terms - terms.mean(axis=0)) / terms.std(axis=0)
    assert scaled.T @ residual + weights * terms.std(axis=0) == pytest.approx(np.zeros(12), abs=1e-3)
    assert residual.sum() == pytest.approx(0, abs=1e-3)
    order = rng.permutation(4000)
    again, same = fit_logistic(terms[order], outcomes[order])
    assert again == pytest.approx(weights, abs=1e-9)
    assert same == pytest.approx(constant, abs=1e-9)


def test_outcomes_of_one_kind_are_refused() -> None:
    with pytest.raises(TraceError, match="no accepted and rejected tokens to fit on"):
        fit_logistic(np.zeros((3, 1)), np.ones(3, np.bool_))
