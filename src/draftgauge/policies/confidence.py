"""Draft on while the drafter is sure: policies with a threshold on confidence, decided token by token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Signal, SignalArrays, Step


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Stops after the first drafted token whose confidence is below ``threshold``; that token is still verified.

    The ``assistant_confidence_threshold`` of Hugging Face transformers (``ConfidenceCriteria``, from Mamou et al. 2024,
    "Dynamic Speculation Lookahead"), held constant.

    Attributes:
        threshold: in 0..1.
        gamma: the most tokens to draft.
    """

    threshold: float
    gamma: int
    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def reset(self) -> None:
        """Nothing to forget."""

    def limit(self) -> int:
        """``gamma``."""
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        """Unless the last token was in doubt."""
        return signal.confidence >= self.threshold

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Depth of the first confidence below the threshold, else ``gamma``; ``[positions]``."""
        # In float64 as token by token: float32 would round the threshold.
        return _first_below(signals.confidence.astype(np.float64), self.threshold, self.gamma)


class CumulativeConfidence:
    """Stops once the product of the step's confidences, an estimate of the chance that all drafted tokens stand, is below ``threshold``.

    Attributes:
        threshold: in 0..1.
        gamma: the most tokens to draft.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def __init__(self, threshold: float, gamma: int) -> None:
        self.threshold = threshold
        self.gamma = gamma
        self._product = 1.0

    def reset(self) -> None:
        """Nothing to forget."""

    def limit(self) -> int:
        """``gamma``; a new product begins."""
        self._product = 1.0
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        """While the product is not below the threshold."""
        self._product *= signal.confidence
        return self._product >= self.threshold

    def observe(self, step: Step) -> None:
        """Nothing to learn."""

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Depth at which the product falls below the threshold, else ``gamma``; ``[positions]``."""
        return _first_below(np.cumprod(signals.confidence, axis=1, dtype=np.float64), self.threshold, self.gamma)


def _first_below(values: NDArray[np.float64], threshold: float, gamma: int) -> NDArray[np.int64]:
    """1-based column of the first value below the threshold within the first ``gamma`` columns, else ``gamma``; NaN is not below."""
    below = values[:, :gamma] < threshold
    return np.where(below.any(axis=1), below.argmax(axis=1) + 1, gamma)
