"""Fitting SpecDec++ and SpecKV: the numbers follow the papers and repeat exactly; misfits are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.fitting.specdec import fit_specdec
from draftgauge.fitting.speckv import fit_speckv
from draftgauge.policies import StatelessPolicy, make_policy
from draftgauge.policies.base import Signal, SignalArrays, Step
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.fitted import FittedPolicy, fitted_policy, load_fitted, save_fitted
from draftgauge.policies.specdec import AcceptanceHead, SpecDecPlusPlus, dense_features
from draftgauge.policies.speckv import GammaChooser, Network, SpecKVPrevious, SpecKVTwo
from draftgauge.replaying.rows import positions_in_prompt
from draftgauge.replaying.simulate import replay
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from synthetic import synthetic_trace

GAMMA_MAX = 8


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(seed=1, prompts=24, length=60, gamma_max=GAMMA_MAX)


@pytest.fixture(scope="module")
def specdec(trace: Trace) -> FittedPolicy:
    return fit_specdec(trace, GAMMA_MAX, seed=0)


@pytest.fixture(scope="module")
def speckv(trace: Trace) -> FittedPolicy:
    return fit_speckv(trace, "two", seed=0)


def judged(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Features of the tokens that a verification judges, and whether they were accepted, position by position."""
    features = dense_features(SignalArrays(trace.confidence, trace.entropy, trace.margin))
    rows, accepted = [], []
    room = trace.max_new_tokens - 1 - positions_in_prompt(trace)
    for position in range(trace.positions):
        for depth in range(1, min(trace.accepted[position] + 1, trace.drafted[position], room[position]) + 1):
            rows.append(features[position, depth - 1])
            accepted.append(depth <= trace.accepted[position])
    return np.array(rows), np.array(accepted)


def test_the_head_is_calibrated_where_rejected_tokens_weigh_six(trace: Trace, specdec: FittedPolicy) -> None:
    features, accepted = judged(trace)
    head = AcceptanceHead(**specdec.parameters)
    chance = 1 / (1 + np.exp(-(features @ np.array(head.weights) + head.bias)))
    weights = np.where(accepted, 1.0, 6.0)
    # At the optimum the weighted residuals sum to 0; the regularisation leaves the intercept free.
    assert abs(np.sum(weights * (accepted - chance))) / weights.sum() < 1e-3
    assert chance[accepted].mean() > chance[~accepted].mean() + 0.1
    assert specdec.provenance["judged_tokens"] == len(accepted)
    assert specdec.trained_on[0] == "code/p0"


def test_fits_are_the_same_every_time(trace: Trace, specdec: FittedPolicy, speckv: FittedPolicy) -> None:
    assert fit_specdec(trace, GAMMA_MAX, seed=0) == specdec
    assert fit_speckv(trace, "two", seed=0) == speckv
    assert fit_speckv(trace, "two", seed=1).parameters != speckv.parameters


def test_the_networks_of_speckv_predict_acceptance(trace: Trace, speckv: FittedPolicy) -> None:
    for reading, least in (("previous", 0.05), ("two", 0.2)):
        scores = speckv.provenance["training"][reading]
        assert scores["mean_squared_error"] < (1 - least) * scores["variance"]
    assert speckv.parameters["reading"] == "two"
    sure, unsure = (0.05, 0.97, 0.1, 0.95), (3.0, 0.15, 3.5, 0.1)
    chooser = GammaChooser(Network(**speckv.parameters["two"]), "none", GAMMA_MAX)
    assert chooser.choose(sure) >= chooser.choose(unsure)


def test_speckv_learns_compression_from_traces_of_several(trace: Trace) -> None:
    # Under nf4 nothing is ever accepted: the network must tell it from int8 by its code alone.
    hopeless = replace(trace, compression="nf4", accepted=np.zeros_like(trace.accepted))
    fitted = fit_speckv([replace(trace, compression="none"), hopeless], seed=0)
    network = Network(**fitted.parameters["two"])
    rates = {}
    for compression in ("none", "nf4"):
        chooser = GammaChooser(network, compression, GAMMA_MAX)
        units = np.maximum(np.array([0.05, 0.97, 0.1, 0.95]) @ chooser._weights + chooser._given, 0.0)
        rates[compression] = (chooser._expected(units)[0] - 1) / 2
    assert rates["none"] > 0.5
    assert rates["nf4"] < 0.2
    assert fitted.parameters["compression"] == "none"

    def chosen(compression: str) -> int:
        policy = fitted_policy(fitted, GAMMA_MAX, LinearCosts(compression=compression))
        policy.observe(Step(2, 2, 3, (Signal(1, 0.95, 0.1, 0.9), Signal(2, 0.97, 0.05, 0.9))))
        return policy.limit()

    assert chosen("nf4") == chosen("bnb-nf4") == 2 < chosen("none") == chosen("bf16")
    assert chosen("int8") == chosen("") == chosen("none")  # none of which it has seen


@pytest.mark.parametrize("kind", ["specdec", "speckv"])
def test_a_fitted_file_is_the_policy(kind: str, trace: Trace, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fitted: FittedPolicy = request.getfixturevalue(kind)
    path = tmp_path / "policy.json"
    save_fitted(fitted, path)
    assert load_fitted(path).parameters == fitted.parameters
    policy = make_policy(str(path), GAMMA_MAX)
    assert isinstance(policy, SpecDecPlusPlus | SpecKVTwo)
    record = replay(trace, policy).record
    assert record.drafted.tolist() == replay(trace, fitted_policy(fitted, GAMMA_MAX, None)).record.drafted.tolist()
    assert isinstance(policy, StatelessPolicy)


@pytest.mark.parametrize("kind", ["specdec", "speckv"])
def test_what_does_not_fit_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    fitted: FittedPolicy = request.getfixturevalue(kind)
    with pytest.raises(DraftgaugeError, match="was fitted for gamma_max 8, the longest draft here is 5"):
        fitted_policy(fitted, 5, None)
    with pytest.raises(
        DraftgaugeError, match=r"was fitted on the signals loudness; this draftgauge has .*: fit it again"
    ):
        fitted_policy(replace(fitted, signals=("loudness",)), GAMMA_MAX, None)
    with pytest.raises(DraftgaugeError, match="unknown key 'colour'"):
        fitted_policy(replace(fitted, parameters={**fitted.parameters, "colour": 1}), GAMMA_MAX, None)


def test_numbers_of_the_wrong_shape_are_refused(specdec: FittedPolicy, speckv: FittedPolicy) -> None:
    with pytest.raises(DraftgaugeError, match="the head has 2 weights, not 7"):
        fitted_policy(replace(specdec, parameters={"weights": [1.0, 2.0], "bias": 0.0}), GAMMA_MAX, None)
    network = {**speckv.parameters["two"], "output": [1.0]}
    with pytest.raises(DraftgaugeError, match="tables do not fit together"):
        fitted_policy(replace(speckv, parameters={**speckv.parameters, "two": network}), GAMMA_MAX, None)


def test_no_token_past_the_end_of_an_output_counts_as_rejected() -> None:
    """What the target would have said there is not known."""
    trace = synthetic_trace(seed=2, prompts=4, length=16, gamma_max=8)
    counts = np.diff(trace.offsets)
    left = np.concatenate([np.arange(count)[::-1] for count in counts])
    accepted = np.minimum(left, 8).astype(np.int16)
    drafted = np.where(np.repeat(counts, counts) == 16, 8, accepted)  # others ended with an end token, as drafts do
    signals = dict.fromkeys(("confidence", "entropy", "margin"), np.full_like(trace.confidence, 0.5))
    perfect = replace(trace, drafted=drafted.astype(np.int16), accepted=accepted, **signals)
    with pytest.raises(TraceError, match="accepted and ones that were rejected"):
        fit_specdec(perfect)


def test_compressions_that_speckv_knows() -> None:
    trace = synthetic_trace(seed=1, prompts=4, length=20, gamma_max=8)
    for compression in ("fp32", "bnb-int8", "bnb-nf4"):
        fitted = fit_speckv(replace(trace, compression=compression))
        assert fitted_policy(fitted, GAMMA_MAX, None).limit() > 0
    with pytest.raises(TraceError, match="this one is awq: fit another policy"):
        fit_speckv(replace(trace, compression="awq"))


def test_traces_that_cannot_be_learned_from_are_refused(trace: Trace) -> None:
    with pytest.raises(TraceError, match="accepted and ones that were rejected"):
        fit_specdec(replace(trace, accepted=np.zeros_like(trace.accepted)))
    with pytest.raises(TraceError, match="drafts of 1 to 8 tokens, 9 cannot"):
        fit_specdec(trace, 9)
    with pytest.raises(TraceError, match="needs a trace of gamma_max 4 or more, not 3"):
        fit_speckv(synthetic_trace(seed=1, prompts=4, length=20, gamma_max=3))
    with pytest.raises(TraceError, match=r"one gamma_max, not \[5, 8\]"):
        fit_speckv([trace, synthetic_trace(seed=1, prompts=4, length=20, gamma_max=5)])
    with pytest.raises(TraceError, match="too short"):
        fit_speckv(synthetic_trace(seed=1, prompts=3, length=1, gamma_max=8))


def test_bundled_policies_serve_any_longest_draft() -> None:
    assert bundled_policy("specdec++").gamma_max == bundled_policy("speckv").gamma_max == 16
    assert make_policy("specdec++", 5).limit() == 5
    assert make_policy("specdec++", 30).limit() == 16
    assert isinstance(make_policy("speckv", 30), SpecKVPrevious)
    assert make_policy("speckv:reading=two", 5).limit() == 4
    assert make_policy("speckv", 3).limit() == 3
