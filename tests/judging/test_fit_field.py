"""Fitting SpecKV: the numbers follow the paper and repeat exactly; misfits are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.judging.fitting import fit_speckv, fit_stopping, fit_two_source
from draftgauge.judging.replay import replay
from draftgauge.policies import Signal, Step, make_policy
from draftgauge.policies.fitted import FittedPolicy, bundled_policy, fitted_policy, load_fitted, save_fitted
from draftgauge.policies.speckv import Network, SpecKV
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from synthetic import synthetic_trace

GAMMA_MAX = 8


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(seed=1, prompts=24, length=60, gamma_max=GAMMA_MAX)


@pytest.fixture(scope="module")
def speckv(trace: Trace) -> FittedPolicy:
    return fit_speckv([trace])


def test_the_network_predicts_acceptance_and_is_the_same_every_time(trace: Trace, speckv: FittedPolicy) -> None:
    assert fit_speckv([trace]) == speckv
    assert fit_speckv([trace], seed=-1).parameters != speckv.parameters
    scores = speckv.provenance["training"]
    assert scores["mean_squared_error"] < 0.95 * scores["variance"]
    rates = SpecKV(Network(**speckv.parameters["network"]), "uncompressed", GAMMA_MAX).rates
    assert rates((0.05, 0.97, 0.1, 0.95)).mean() > rates((3.0, 0.15, 3.5, 0.1)).mean()


def test_it_learns_compression_from_traces_of_several(trace: Trace) -> None:
    # Under nf4 nothing is ever accepted: the network must tell it from int8 by its code alone.
    hopeless = replace(trace, compression="nf4", accepted=np.zeros_like(trace.accepted))
    fitted = fit_speckv([replace(trace, compression="uncompressed"), hopeless])
    network = Network(**fitted.parameters["network"])
    rates = {
        name: SpecKV(network, name, GAMMA_MAX).rates((0.05, 0.97, 0.1, 0.95))[0] for name in ("uncompressed", "nf4")
    }
    assert rates["uncompressed"] > rates["nf4"] + 0.1
    assert rates["nf4"] < 0.2
    assert fitted.parameters["compression"] == "uncompressed"

    def chosen(compression: str) -> int:
        policy = fitted_policy(fitted, GAMMA_MAX, LinearCosts(compression=compression))
        policy.observe(Step(2, 2, 3, (Signal(1, 0.95, 0.1, 0.9), Signal(2, 0.97, 0.05, 0.9))))
        return policy.limit()

    assert chosen("nf4") == chosen("bnb-nf4") == 2 < chosen("uncompressed") == chosen("bf16")
    assert chosen("int8") == chosen("") == chosen("uncompressed")  # none of which it has seen


def test_a_fitted_file_is_the_policy(trace: Trace, speckv: FittedPolicy, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    save_fitted(speckv, path)
    assert load_fitted(path).parameters == speckv.parameters
    policy = make_policy(str(path), GAMMA_MAX)
    assert isinstance(policy, SpecKV)
    drafted = replay(trace, policy).record.drafted.tolist()
    assert drafted == replay(trace, fitted_policy(speckv, GAMMA_MAX, None)).record.drafted.tolist()


def test_what_does_not_fit_is_refused(speckv: FittedPolicy) -> None:
    with pytest.raises(DraftgaugeError, match="was fitted for gamma_max 8, the longest draft here is 5"):
        fitted_policy(speckv, 5, None)
    with pytest.raises(
        DraftgaugeError, match=r"was fitted on the signals loudness; this draftgauge has .*: fit it again"
    ):
        fitted_policy(replace(speckv, signals=("loudness",)), GAMMA_MAX, None)
    with pytest.raises(DraftgaugeError, match="unknown key 'colour'"):
        fitted_policy(replace(speckv, parameters={**speckv.parameters, "colour": 1}), GAMMA_MAX, None)
    network = {**speckv.parameters["network"], "output": [1.0]}
    with pytest.raises(DraftgaugeError, match="tables do not fit together"):
        fitted_policy(replace(speckv, parameters={**speckv.parameters, "network": network}), GAMMA_MAX, None)


def test_compressions_that_it_knows() -> None:
    trace = synthetic_trace(seed=1, prompts=4, length=20, gamma_max=8)
    for compression in ("fp32", "bnb-int8", "awq"):
        fitted = fit_speckv([replace(trace, compression=compression)])
        assert fitted_policy(fitted, GAMMA_MAX, None).limit() > 0
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
