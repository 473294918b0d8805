"""Draft lengths drawn at random, by which costs of batches are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.policies.base import Signal, Step

READS: Reads = frozenset({SignalName.CONFIDENCE})
DRAWN = 256  # steps whose lengths are drawn at once, as drawing takes time within a step
AGAIN, IDLE = 0.3, 0.05
"""Shares of the steps: those that draft as the step before, and those that draft nothing, as the one behind them."""


class RandomLengths:
    """Draft lengths drawn at random, half of the time one for all requests and else one for each, and now and then
    those of the step before; signals are read in a third of the steps.
    """

    def __init__(self, gamma_max: int, slots: int, rng: np.random.Generator) -> None:
        self._gamma_max, self._slots, self._rng = gamma_max, slots, rng
        self._lengths: list[list[int]] = []
        self._read: list[bool] = []
        self._wanted: list[int] = []
        self.reads: Reads = NO_SIGNALS

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        """Draw for the steps to come."""
        if len(self._read) < DRAWN:
            own = self._rng.integers(self._gamma_max + 1, size=(DRAWN, self._slots))
            shared = self._rng.random(DRAWN) < 1 / 2
            own[shared] = own[shared, :1]
            for step in np.flatnonzero(self._rng.random(DRAWN - 1) < AGAIN)[::-1]:
                own[step] = own[step + 1]  # they are taken from the end
            for step in np.flatnonzero(self._rng.random(DRAWN - 1) < IDLE):
                own[step : step + 2] = 0
            self._lengths += own.tolist()
            self._read += (self._rng.random(DRAWN) < 1 / 3).tolist()

    def first(self, caps: Mapping[int, int]) -> list[int]:
        self.reads = READS if self._read.pop() else NO_SIGNALS
        self._wanted = self._lengths.pop()
        return [slot for slot, cap in caps.items() if cap > 0 and self._wanted[slot] > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if signal.depth < self._wanted[slot]]

    def observe(self, slot: int, step: Step) -> None:
        """Nothing to learn."""
