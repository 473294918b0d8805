"""Replay and the live loop agree on seconds: a cost curve that is measured on a clock models what the clock then shows.

Time passes for the passes of the models, for signals, and for each step; the machine is noisy, a pass over one token
is cheaper than the others, the draft takes longer where it has several tokens to take in, and a pass may take less
where it is over as many tokens as the one before.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.decoding.meter import MeterPlan, measure_costs
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Step, decision_of, reads_of
from draftgauge.policies.registry import make_policy
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.replaying.backlog import backlogs
from draftgauge.traces.costs import CostCurve, SignalSeconds
from tiny import tiny_model, tokens

GAMMA_MAX = 5
SIGNALS = SignalSeconds(asking=0.1, distribution=0.2, confidence=0.1)
STEP = 1.0
POLICIES = ("none", "fixed:1", "fixed:4", "hf-heuristic", "cumulative-confidence:threshold=0.05", "stopping")
ENDING = (
    ("stopping", True, False),
    ("lookup:least=1,tokens=3", False, True),
    ("lookup-else-stopping:least=1,tokens=3", True, True),
    ("two-source", True, True),
)
"""Policies that leave drafted tokens out, that append others, or both."""


class Machine:
    """A noisy clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rng = np.random.default_rng(0)

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormal(0.0, 0.05)


class TimedPasses(WrappedModel):
    """A pass over ``k`` tokens takes ``seconds[k]`` on the machine, a longer one as long as the last, and ``change``
    more where the pass before was over another number.
    """

    def __init__(self, model: CachedModel, machine: Machine, seconds: tuple[float, ...], change: float = 0.0) -> None:
        super().__init__(model)
        self.machine, self.seconds, self.change = machine, seconds, change
        self.last = 0

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self.machine.spend(self.seconds[min(len(tokens), len(self.seconds) - 1)])
        self.machine.spend(self.change if len(tokens) != self.last else 0.0)
        self.last = len(tokens)
        return self.model.forward(tokens, last_only)


class TimedSignals(LanguageModelDrafter):
    """Signals take time; so does a step's bookkeeping."""

    machine: Machine

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        draft = super().propose(limit, keep_drafting, reads)
        if keep_drafting:
            self.machine.spend(len(draft.signals) * SIGNALS.of_token(reads))
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        super().commit(accepted, tokens)
        self.machine.spend(STEP)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(time, "perf_counter", lambda: machine.now)
    return machine


def modelled(curve: CostCurve, prompt: int, steps: list[Step], policy: object) -> float:
    """Seconds of the steps of one output, as replay models them."""
    drafted, beyond, accepted, committed = np.array(
        [(step.drafted, step.appended - step.trimmed, step.accepted, step.committed) for step in steps]
    ).T
    contexts = prompt + np.concatenate([[0], np.cumsum(committed)[:-1]])
    seconds = curve.step_seconds(drafted, contexts, reads_of(policy), beyond).sum()  # type: ignore[arg-type]
    waiting = backlogs(np.zeros(len(steps), np.int64), drafted, accepted, curve)
    decision = decision_of(policy)  # type: ignore[arg-type]  # takes no time on this clock
    assert decision.token < 1e-3
    repeats = (drafted[1:] == drafted[:-1]) & (beyond[1:] == beyond[:-1])
    saved = curve.repeat_seconds(drafted, beyond)[1:][repeats].sum()
    return float(seconds + curve.catch_up_seconds(waiting, drafted).sum() - saved)


def measured(machine: Machine, change: float) -> tuple[CachedModel, TimedSignals, CostCurve]:
    """A pair whose passes take time on the machine, and its cost curve."""
    target = TimedPasses(wrap(tiny_model(seed=1)), machine, (0.0, 10.0, 15.0, 16.0, 17.0, 18.0, 19.0), change)
    draft = TimedPasses(wrap(tiny_model(seed=1, num_hidden_layers=1)), machine, (0.0, 2.0, 3.0))
    drafter = TimedSignals(draft)
    drafter.machine = machine
    plan = MeterPlan(tokens(60, seed=1).tolist(), (30, 90), gamma_max=GAMMA_MAX, seconds=30_000.0)
    return target, drafter, measure_costs(target, drafter, plan, np.random.default_rng(0))


@pytest.mark.parametrize("change", [0.0, 3.0])
def test_modelled_seconds_are_those_of_the_live_loop(machine: Machine, change: float) -> None:
    """Steps like the one before them take less time, or not."""
    target, drafter, curve = measured(machine, change)
    settings = DecodingSettings(max_new_tokens=40)
    for spec in POLICIES:
        policy, live, model = make_policy(spec, GAMMA_MAX, curve), 0.0, 0.0
        if isinstance(policy, ThroughputStopping):  # with tokens left out, fewer steps count as like the one before
            policy = ThroughputStopping(replace(policy.numbers, trims=False), policy.gamma_max, curve)
        for seed in range(6):
            prompt = tokens(20, seed=seed).tolist()
            result = speculative_decode(target, drafter, policy, prompt, settings)
            live += result.decode_seconds
            model += modelled(curve, len(prompt), result.steps, policy)
        assert model == pytest.approx(live, rel=0.03), spec


@pytest.mark.parametrize("change", [0.0, 3.0])
def test_seconds_of_tokens_left_out_and_appended_are_those_of_the_live_loop(machine: Machine, change: float) -> None:
    """Where a token is left out, the saving of a pass as wide as the one before is not modelled: no less than live."""
    target, drafter, curve = measured(machine, change)
    settings = DecodingSettings(max_new_tokens=40)
    for spec, trims, appends in ENDING:
        policy, live, model = make_policy(spec, GAMMA_MAX, curve), 0.0, 0.0
        steps: list[Step] = []
        for seed in range(6):
            prompt = tokens(20, seed=seed).tolist() * 2
            result = speculative_decode(target, drafter, policy, prompt, settings)
            live += result.decode_seconds
            model += modelled(curve, len(prompt), result.steps, policy)
            steps += result.steps
        assert (sum(step.trimmed for step in steps) > 20) == trims, spec
        assert (sum(step.appended for step in steps) > 100) == appends, spec
        assert 0.97 * live < model < (1.06 if trims and change else 1.03) * live, spec
