"""Parts of steps, live and charged: each of them as long as the models and the policy take, and together the step."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pytest
from torch import Tensor

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.loading import wrap
from draftgauge.policies.base import DecisionSeconds, Signal, Step
from draftgauge.policies.two_source import TwoSource
from draftgauge.replaying.simulate import replay
from draftgauge.traces.costs import CostCurve, SignalSeconds
from synthetic import repeating_trace
from tiny import tiny_model, tokens
from two_source_numbers import GAMMA_MAX, random_numbers

ASKED, LOOKED_UP, TOLD = 0.5, 0.25, 2.0


class Deciding:
    """Drafts two tokens and appends one; everything takes time."""

    def __init__(self, inner: TwoSource, spend: list[float]) -> None:
        self.reads, self.spend, self._inner = inner.reads, spend, inner
        self.read, self.reset = inner.read, inner.reset

    def limit(self) -> int:
        self._inner.limit()
        return 2

    def keep_drafting(self, signal: Signal) -> bool:
        self.spend[0] += ASKED
        return True

    def extend(self, room: int) -> Sequence[int]:
        self.spend[0] += LOOKED_UP
        return [3][:room]

    def observe(self, step: Step) -> None:
        self.spend[0] += TOLD


class Slow(WrappedModel):
    """A pass takes so many seconds."""

    def __init__(self, model: WrappedModel, now: list[float], seconds: float) -> None:
        super().__init__(model)
        self.now, self.seconds = now, seconds

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self.now[0] += self.seconds
        return self.model.forward(tokens, last_only)


def costs_of(**changes: object) -> CostCurve:
    draft, verify = (tuple(first + step * n for n in range(GAMMA_MAX + 1)) for first, step in ((0.0, 0.1), (1.0, 0.02)))
    tables = ((verify,),) * 3 + ((draft,),) * 3
    return CostCurve((100,), *tables, 0.05, (1.0,), "none", "cpu", "float32", **changes)  # type: ignore[arg-type]


def test_each_part_of_a_live_step_is_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from step_parts import DECISION, DRAFT, OVERHEAD, STEP, VERIFY, live_parts

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    target = Slow(wrap(tiny_model(seed=1)), now, 10.0)  # type: ignore[arg-type]
    drafter = LanguageModelDrafter(Slow(wrap(tiny_model(seed=2, num_hidden_layers=1)), now, 3.0))  # type: ignore[arg-type]
    policy = Deciding(TwoSource(random_numbers(0), GAMMA_MAX, costs_of()), now)
    steps = live_parts(target, drafter, policy, tokens(20, seed=1).tolist(), DecodingSettings(30))
    assert len(steps) > 5
    for step in steps[:5]:  # near the limit there is less room
        assert step[DRAFT] == pytest.approx(2 * 3.0)
        assert step[VERIFY] == pytest.approx(10.0)
        assert step[DECISION] == pytest.approx(2 * ASKED + LOOKED_UP + TOLD)
        assert step[OVERHEAD] == pytest.approx(0.0)
        assert step[STEP] == pytest.approx(16.0 + 2 * ASKED + LOOKED_UP + TOLD)


def test_what_replay_charges_falls_into_the_same_parts() -> None:
    from step_parts import DECISION, DRAFT, OVERHEAD, VERIFY, charged_parts

    trace = repeating_trace(3, prompts=3, length=40, gamma_max=GAMMA_MAX, vocabulary=4)
    costs = costs_of(signals=SignalSeconds(asking=0.01, confidence=0.02), catch_up=(0.0, 0.3))
    policy = TwoSource(random_numbers(7), GAMMA_MAX, costs)
    policy.decision = DecisionSeconds(token=0.25, step=2.0, reading=0.01, committed=0.5)
    outcome = replay(trace, policy, costs)
    record, parts = outcome.record, charged_parts(trace, outcome, policy, costs)
    caught_up = parts[DRAFT] - (0.1 + 0.03) * record.drafted
    assert set(np.round(caught_up, 6).tolist()) == {0.0, 0.3}
    np.testing.assert_allclose(parts[VERIFY], 1.0 + 0.02 * (record.drafted - record.trimmed + record.appended))
    np.testing.assert_allclose(parts[DECISION], 2.0 + 0.25 * record.drafted + 0.5 * record.committed)
    np.testing.assert_allclose(parts[OVERHEAD], 0.05)
