"""Draft lengths drawn at random, by which costs of batches are measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.policies.base import DecisionSeconds, Signal, Step
from draftgauge.policies.batch import Opening
from draftgauge.policies.budget_ranking import BudgetRanking
from draftgauge.traces.batch_costs import BatchCosts

READS: Reads = frozenset({SignalName.CONFIDENCE})
DRAWN = 256  # steps whose lengths are drawn at once, as drawing takes time within a step
AGAIN, IDLE = 0.3, 0.05
"""Shares of the steps: those that draft as the step before, and those that draft nothing, as the one behind them."""


class RandomLengths:
    """Draft lengths drawn at random, half of the time one for all requests and else one for each, and now and then
    those of the step before; signals are read in a third of the steps.
    """

    decision = DecisionSeconds()
    ranks: ClassVar[bool] = False

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

    def first(self, opening: Opening) -> list[int]:
        self.reads = READS if self._read.pop() else NO_SIGNALS
        self._wanted = self._lengths.pop()
        return [slot for slot, cap in opening.caps.items() if cap > 0 and self._wanted[slot] > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if signal.depth < self._wanted[slot]]

    def drafted_last(self, slot: int, signal: Signal) -> None:
        """Nothing to note."""

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        return drafted

    def observe(self, slot: int, step: Step) -> None:
        """Nothing to learn."""


class RankedLengths(RandomLengths):
    """Ranks the requests besides, as a shared budget does, by chances drawn at random, and notes what that takes. How
    far to draft stays as it was drawn, and signals are always read.

    Attributes:
        noted: of every step, how often a request was ranked, and the seconds that ranking took.
    """

    def __init__(self, gamma_max: int, slots: int, rng: np.random.Generator) -> None:
        super().__init__(gamma_max, slots, rng)
        self.noted: list[tuple[int, float]] = []
        ahead = [[1.0] * (gamma_max - drafted) for drafted in range(gamma_max)]
        self._ranking = BudgetRanking(_some_costs(slots, gamma_max), slots, ahead, DecisionSeconds())
        self._chances: list[float] = np.sort(rng.random(gamma_max + 1))[::-1].tolist()  # by tokens drafted
        self._stands: dict[int, list[float]] = {}

    def first(self, opening: Opening) -> list[int]:
        wanted = super().first(opening)
        self.reads = READS
        began = time.perf_counter()
        self._ranking.begin(len(opening.caps), opening.context)
        self._stands = {slot: [] for slot in opening.caps}
        chances = {slot: self._chances[0] for slot, cap in opening.caps.items() if cap > 0}
        self._ranking.admitted(chances, opening.backlog)
        self._spent = time.perf_counter() - began
        return wanted

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        began = time.perf_counter()
        for slot, signal in drafted.items():
            self._stands[slot].append(self._chances[signal.depth - 1])
        self._ranking.admitted({slot: self._chances[signal.depth] for slot, signal in drafted.items()}, None)
        self._spent += time.perf_counter() - began
        return super().onward(drafted)

    def drafted_last(self, slot: int, signal: Signal) -> None:
        self._stands[slot].append(self._chances[signal.depth - 1])

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        began = time.perf_counter()
        self._ranking.verified(self._stands)
        self._spent += time.perf_counter() - began
        self.noted.append((len(drafted) + sum(drafted.values()), self._spent))
        return drafted

    def observe(self, slot: int, step: Step) -> None:
        self._ranking.committed(step.committed)


def _some_costs(batch: int, gamma_max: int) -> BatchCosts:
    """Any costs: what ranking takes does not depend on them."""
    batches = (1, batch) if batch > 1 else (1,)
    ones = (1.0,) * len(batches)
    verify, draft = ((((1.0,) * width,),) * len(batches) for width in (gamma_max + 1, 2))
    return BatchCosts(batches, (1,), verify, draft, ((1.0,),) * len(batches), ones, ones)
