"""Replay and the live loop agree on seconds: a cost curve that is measured on a clock models what the clock then shows.

Time passes for the passes of the models, for signals, and for each step; the machine is noisy, a pass over one token
is cheaper than the others, and the draft takes longer where it has several tokens to take in.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.judging.replay import backlogs
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Step, reads_of
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import CostCurve
from timed_work import Clock, TimedDrafter, TimedHybrid, TimedModel
from tiny import tiny_model, tokens

GAMMA_MAX = 5
LOOKING = 0.4
STEP = 1.0
KERNELS = {  # seconds of a pass over 1, 2, ... tokens
    "a single row alone": (10.0, 15.0, 16.0, 17.0, 18.0, 19.0),
    "a slow single row, and rows in fours": (15.0, 10.0, 14.0, 12.0, 22.0, 23.0),
    "recurrent": (10.0, 12.0, 14.0, 16.0, 18.0, 20.0),
}
APPENDING = ("lookup:least=1,tokens=3", "lookup-else-stopping:least=1,tokens=3", "two-source")
POLICIES = (
    *("no-draft", "fixed:1", "fixed:4", "hf-heuristic", "cumulative-confidence:threshold=0.05", "stopping", "drops"),
    *APPENDING,
)


class DropsTheLast(FixedLength):
    """Drafts a fixed length, and leaves out the last token."""

    def drops_last(self) -> bool:
        return True


class Machine(Clock):
    """A noisy one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.rng = np.random.default_rng(0)

    def spend(self, seconds: float) -> None:
        super().spend(seconds * self.rng.lognormal(0.0, 0.05))


def modelled(curve: CostCurve, prompt: int, steps: list[Step], policy: object) -> float:
    """Seconds of the steps of one output, as replay models them."""
    drafted, beyond, accepted, committed = np.array(
        [(step.drafted, step.appended - step.dropped, step.accepted, step.committed) for step in steps]
    ).T
    contexts = prompt + np.concatenate([[0], np.cumsum(committed)[:-1]])
    seconds = curve.step_seconds(drafted, contexts, reads_of(policy), beyond).sum()  # type: ignore[arg-type]
    waiting = backlogs(np.zeros(len(steps), np.int64), drafted, accepted, curve)
    back = curve.rollback_seconds(drafted + beyond, accepted).sum()
    return float(seconds + back + curve.catch_up_seconds(waiting, drafted).sum())


def measured(machine: Machine, kernel: str) -> tuple[CachedModel, TimedDrafter, CostCurve]:
    """A pair whose passes take time on the machine, and its cost curve."""
    verifying, drafting = KERNELS[kernel], (2.0, 3.0)  # by tokens, more take as long as the last
    small, large = wrap(tiny_model(seed=1, num_hidden_layers=1)), wrap(tiny_model(seed=1))

    def seconds(tokens: int) -> float:
        return verifying[min(tokens, 6) - 1]

    recurrent = kernel == "recurrent"
    target = TimedHybrid(large, machine, seconds, 2.0) if recurrent else TimedModel(large, machine, seconds)
    drafter = TimedDrafter(TimedModel(small, machine, lambda tokens: drafting[min(tokens, 2) - 1]), LOOKING, STEP)
    plan = MeterPlan(tokens(60, seed=1).tolist(), (30, 90), gamma_max=GAMMA_MAX, seconds=4_000.0)
    return target, drafter, measure_costs(target, drafter, plan, np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore:cost curve")
@pytest.mark.parametrize("kernel", KERNELS)
def test_modelled_seconds_are_those_of_the_live_loop(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Also where tokens are left out, or appended from a prompt that repeats itself."""
    target, drafter, curve = measured(Machine(monkeypatch), kernel)
    assert curve.rollback == pytest.approx(
        [1.0 + 2.0 * kept for kept in range(1, 6)] * (kernel == "recurrent"), rel=0.1
    )
    others = [seconds / KERNELS[kernel][0] for seconds in KERNELS[kernel]]
    assert [(seconds - STEP) / (curve.verify[0][0] - STEP) for seconds in curve.verify[0]] == pytest.approx(
        others, rel=0.08
    )
    settings = DecodingSettings(max_new_tokens=40)
    for copies, spec in itertools.product((1, 2), POLICIES):
        policy = DropsTheLast(4) if spec == "drops" else make_policy(spec, GAMMA_MAX, curve)
        live, model, steps = 0.0, 0.0, list[Step]()
        for seed in range(2):
            prompt = tokens(20, seed=seed).tolist() * copies
            result = speculative_decode(target, drafter, policy, prompt, settings)
            live += result.decode_seconds
            model += modelled(curve, len(prompt), result.steps, policy)
            steps += result.steps
        assert spec != "drops" or sum(step.dropped for step in steps) > 10
        if copies == 2:
            assert (sum(step.appended for step in steps) > 15) == (spec in APPENDING), spec
        assert model == pytest.approx(live, rel=0.03), spec
