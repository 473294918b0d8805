"""The same draft length at every step, 0 being no speculation: the baselines of every other policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Signal, SignalArrays, Step


@dataclass(frozen=True)
class FixedLength:
    """Drafts ``gamma`` tokens at every step (Leviathan et al. 2023, section 2); with ``gamma`` 0 it never speculates."""

    gamma: int
    reads: ClassVar[Reads] = NO_SIGNALS

    def reset(self) -> None:
        """Nothing to forget."""

    def limit(self) -> int:
        """``gamma``."""
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        """Always."""
        return True

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """``gamma`` at every position, ``[positions]``."""
        return np.full(signals.positions, self.gamma, np.int64)
