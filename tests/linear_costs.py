"""Costs without measurements: a step costs 1 second, a tenth for each drafted token, and more for a long context."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.traces.costs import CostCurve


@dataclass(frozen=True)
class LinearCosts:
    """What policies that weigh cost ask of a cost curve."""

    gamma_max: int = 32
    contexts: tuple[int, ...] = (0, 10, 100, 1000)
    drafting: float = 0.1
    reading: float = 0.0
    rollback: float = 0.0
    verifying: float = 0.02
    vocabulary: str = ""
    compression: str = "uncompressed"
    engine: str = ""

    def step_seconds(
        self,
        gamma: NDArray[np.int64] | int,
        context: NDArray[np.int64] | int,
        reads: Reads = NO_SIGNALS,
        appended: NDArray[np.int64] | int = 0,
    ) -> NDArray[np.float64]:
        """Seconds at the middle context are ``1 + drafting * gamma``, plus ``reading`` for each signal and
        ``verifying`` for each token that nobody drafted.
        """
        seconds = 1.0 + self.drafting * np.asarray(gamma, np.float64) + (np.asarray(context) - 100) / 1000
        seconds = seconds + self.verifying * np.asarray(appended, np.float64)
        return seconds + self.reading * len(reads)

    def rollback_seconds(self, proposed: NDArray[np.int64] | int, accepted: NDArray[np.int64]) -> NDArray[np.float64]:
        """``rollback`` for each token that is kept where some are rejected."""
        return np.where(accepted < np.asarray(proposed), self.rollback * (1.0 + accepted), 0.0)


def curve(drafting: float, verifying: float = 0.02, gamma_max: int = 6) -> CostCurve:
    """A real cost curve of steps of 1 second and so much for each token drafted and verified."""
    draft = (tuple(drafting * n for n in range(gamma_max + 1)),)
    verify = (tuple(1 + verifying * n for n in range(gamma_max + 1)),)
    return CostCurve((100,), verify, draft, (1.0,), "uncompressed", "cpu", "float32")
