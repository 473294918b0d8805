"""Keep drafting while the product of the step's confidences is high."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Signal, SignalArrays, check_threshold, first_stop
from draftgauge.policies.spec import register_policy


class CumulativeConfidence(PolicyBase):
    """Stops once the product of confidences, the estimated chance of the whole draft, is below ``threshold``."""

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def __init__(self, threshold: float, gamma: int) -> None:
        self.threshold = threshold
        self.gamma = gamma
        self._product = 1.0

    def limit(self) -> int:
        self._product = 1.0
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        self._product *= signal.confidence
        return self._product >= self.threshold

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        return first_stop(np.cumprod(signals.confidence, axis=1, dtype=np.float64) < self.threshold, self.gamma)


@register_policy(
    "cumulative-confidence",
    "drafts on while the product of confidences is above a threshold",
    grid={
        "threshold": (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
    },
    compared=True,
)
def cumulative_confidence(threshold: float = 0.4, *, gamma_max: int) -> Policy:
    check_threshold("cumulative-confidence", threshold)
    return CumulativeConfidence(threshold, gamma_max)
