"""Models and drafters that take the seconds of a clock which stands still otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from torch import Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.models.base import CachedModel
from wrapped_model import WrappedModel


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def spend(self, seconds: float) -> None:
        self.now += seconds


class TimedModel(WrappedModel):
    """A pass over ``k`` tokens takes ``seconds(k)``."""

    def __init__(self, model: CachedModel, clock: Clock, seconds: Callable[[int], float]) -> None:
        super().__init__(model)
        self.clock, self.seconds = clock, seconds

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self.clock.spend(self.seconds(len(tokens)))
        return self.model.forward(tokens, last_only)


class TimedHybrid(TimedModel):
    """Rolling back takes a second, and ``each`` for every token that is kept of the last pass."""

    def __init__(self, model: CachedModel, clock: Clock, seconds: Callable[[int], float], each: float) -> None:
        super().__init__(model, clock, seconds)
        self.spec, self.each, self.begin = replace(model.spec, recurrent=True), each, 0

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self.begin = self.model.length
        return super().forward(tokens, last_only)

    def truncate(self, length: int) -> None:
        self.clock.spend(1.0 + self.each * max(0, length - self.begin))
        self.model.truncate(length)


class TimedDrafter(LanguageModelDrafter):
    """Signals take time; so does a step's bookkeeping."""

    def __init__(self, model: TimedModel, looking: float, step: float) -> None:
        super().__init__(model)
        self.clock, self.looking, self.step = model.clock, looking, step

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        draft = super().propose(limit, keep_drafting, reads)
        if keep_drafting:
            self.clock.spend(len(draft.signals) * self.looking)
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        super().commit(accepted, tokens)
        self.clock.spend(self.step)
