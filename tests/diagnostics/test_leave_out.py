"""What is left out is not fitted on; what it is judged on was never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import TraceError
from draftgauge.diagnostics.leave_out import Recorded, leave_compression_out, leave_pair_out, leave_task_out
from draftgauge.policies.base import Policy, StepCosts
from draftgauge.policies.fitted import FITTED, FittedPolicy
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying.evaluate import best_fixed_gamma
from draftgauge.replaying.splits import prompt_keys, split_trace
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace
from synthetic import synthetic_trace

GAMMA_MAX = 4
KIND = "fixed-as-fitted"


class Fit:
    """Fits the best fixed length of the first run, and notes what it was given."""

    def __init__(self) -> None:
        self.given: list[set[tuple[str, str, str]]] = []

    def __call__(self, runs: Sequence[Recorded]) -> FittedPolicy:
        self.given.append({(run.pair, run.trace.compression, key) for run in runs for key in prompt_keys(run.trace)})
        gamma = best_fixed_gamma(runs[0].trace, runs[0].costs)
        return FittedPolicy(KIND, GAMMA_MAX, (), {"gamma": gamma}, trained_on=tuple(prompt_keys(runs[0].trace)))


@pytest.fixture(autouse=True)
def _kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
        return FixedLength(parameters["gamma"])

    monkeypatch.setitem(FITTED, KIND, build)


def costs(t_draft: float) -> CostCurve:
    verify = tuple(0.01 + 0.001 * k for k in range(GAMMA_MAX + 1))
    draft = tuple(t_draft * n for n in range(GAMMA_MAX + 1))
    return CostCurve((0,), (verify,), (draft,), (0.01,), "none", "cpu", "float32")


def trace(compression: str = "none") -> Trace:
    """Two tasks, each with 8 prompts of every split."""
    found = synthetic_trace(2, prompts=48, length=10, gamma_max=GAMMA_MAX, compression=compression)
    tasks = {"code": "code", "math": "code", "chat": "chat", "summarization": "chat"}
    return replace(found, prompts=tuple(replace(prompt, task=tasks[prompt.task]) for prompt in found.prompts))


def test_a_task_left_out_is_judged_by_what_was_fitted_on_the_other() -> None:
    runs, fit = [Recorded(trace("none"), costs(0.002)), Recorded(trace("int8"), costs(0.004))], Fit()
    rows = leave_task_out(runs, fit, resamples=50)
    everything, without_code, without_chat = fit.given
    train = {("", run.trace.compression, key) for run in runs for key in prompt_keys(split_trace(run.trace, "train"))}
    assert everything == train
    assert without_code == {entry for entry in train if entry[2].startswith("chat/")}
    assert without_chat == {entry for entry in train if entry[2].startswith("code/")}
    assert {(row["design"], row["left"], row["task"], row["compression"]) for row in rows} == {
        ("task", task, task, compression) for task in ("code", "chat") for compression in ("none", "int8")
    }
    assert all(row["prompts"] == 8 and row["split"] == "test" and row["best_fixed_from"] == "train" for row in rows)
    for group in ("code", "chat"):
        policies = [row["policy"] for row in rows if row["left"] == group and row["compression"] == "none"]
        assert {"left-out", "left-in", "none", "hindsight"} <= set(policies)


def test_a_compression_left_out_is_judged_with_its_own_costs() -> None:
    runs, fit = [Recorded(trace("none"), costs(0.0001)), Recorded(trace("nf4"), costs(0.02))], Fit()
    rows = leave_compression_out(runs, fit, resamples=50)
    assert [{compression for _, compression, _ in given} for given in fit.given] == [{"none", "nf4"}, {"nf4"}, {"none"}]
    assert all(row["left"] == row["compression"] for row in rows)
    gains = {(row["left"], row["policy"]): row["gain"] for row in rows if row["task"] == "all"}
    assert gains["none", "left-in"] == 0  # fitted on this very run first
    assert gains["nf4", "left-out"] < -0.05  # drafts as where drafting is next to free


def test_a_pair_left_out_is_named() -> None:
    runs, fit = [Recorded(trace(), costs(0.001), "large"), Recorded(trace(), costs(0.001), "small")], Fit()
    rows = leave_pair_out(runs, fit, resamples=50)
    assert {(row["design"], row["left"], row["pair"]) for row in rows} == {
        ("pair", "large", "large"),
        ("pair", "small", "small"),
    }
    assert [{pair for pair, _, _ in given} for given in fit.given] == [{"large", "small"}, {"small"}, {"large"}]


def test_one_of_a_kind_cannot_be_left_out() -> None:
    with pytest.raises(TraceError, match="two or more compressions"):
        leave_compression_out([Recorded(trace(), costs(0.001))], Fit())
    few = synthetic_trace(2, prompts=24, length=10, gamma_max=GAMMA_MAX)
    with pytest.raises(TraceError, match="8 or more"):
        leave_task_out([Recorded(few, costs(0.001))], Fit(), resamples=50)
    assert np.unique([prompt.task for prompt in few.prompts]).size == 4
