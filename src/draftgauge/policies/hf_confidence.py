"""The confidence threshold of Hugging Face transformers: constant, or (its default) adapted to what was accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import (
    Policy,
    PolicyBase,
    Signal,
    SignalArrays,
    Step,
    check_threshold,
    check_tokens,
    first_stop,
)
from draftgauge.policies.spec import register_policy

_MIN_SAMPLES = 6
_COST_OF_MISSING = 3.0  # of a match that was not drafted, in units of a drafted token that does not match


@dataclass(frozen=True)
class ConfidenceThreshold(PolicyBase):
    """Stops after the first drafted token whose confidence is below ``threshold``; that token is still verified.

    The ``assistant_confidence_threshold`` of Hugging Face transformers (``ConfidenceCriteria``, from Mamou et al. 2024,
    "Dynamic Speculation Lookahead"), held constant.
    """

    threshold: float
    gamma: int
    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def keep_drafting(self, signal: Signal) -> bool:
        return signal.confidence >= self.threshold

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        # In float64 as token by token: float32 would round the threshold.
        return first_stop(signals.confidence.astype(np.float64) < self.threshold, self.gamma)


class AdaptiveConfidenceThreshold(PolicyBase):
    """The confidence threshold of transformers, moved after every step to where it would have cost least on the prompt
    so far.

    ``generate(assistant_model=...)`` of transformers 5 does this where scikit-learn is installed
    (``AssistedCandidateGenerator.update_candidate_strategy``). It keeps the confidence of each step's drafted tokens,
    up to the first rejected one, and whether they matched. From 6 of them with both outcomes on, it takes the threshold
    on their ROC curve with the least ``fpr + 3 fnr``. Every prompt begins anew.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def __init__(self, threshold: float, gamma: int) -> None:
        self.initial_threshold = threshold
        self.gamma = gamma
        self.reset()

    def reset(self) -> None:
        self.threshold = self.initial_threshold
        self._confidences: list[float] = []
        self._matches: list[int] = []

    def keep_drafting(self, signal: Signal) -> bool:
        return signal.confidence >= self.threshold

    def observe(self, step: Step) -> None:
        matches = step.committed - 1
        judged = min(matches + 1, step.drafted)
        self._confidences += [signal.confidence for signal in step.signals[:judged]]
        self._matches += ([1] * matches + [0])[:judged]
        if len(self._matches) >= _MIN_SAMPLES and 0 < sum(self._matches) < len(self._matches):
            self.threshold = _cheapest_threshold(self._matches, self._confidences)


def _cheapest_threshold(matches: Sequence[int], confidences: Sequence[float]) -> float:
    """The threshold with the least ``fpr + 3 fnr`` on ``sklearn.metrics.roc_curve`` (the highest of equals)."""
    order = np.argsort(-np.asarray(confidences), kind="stable")
    scores = np.asarray(confidences)[order]
    last_of_equals = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    true_positives = np.cumsum(np.asarray(matches)[order])[last_of_equals]
    false_positives = 1 + last_of_equals - true_positives
    # roc_curve leaves out points inside a straight piece of the curve; an end of the piece costs no more than they do.
    fpr = false_positives / false_positives[-1]
    fnr = 1 - true_positives / true_positives[-1]
    return float(scores[last_of_equals[np.argmin(fpr + _COST_OF_MISSING * fnr)]])


@register_policy(
    "hf-confidence",
    "drafts on while the drafter's confidence is above a threshold, static or following acceptance (transformers)",
    grid={"threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), "tokens": (2, 3, 4, 6, 8, 20)},
    compared=True,
)
def hf_confidence(threshold: float = 0.4, tokens: int = 20, adaptive: bool = False, *, gamma_max: int) -> Policy:
    check_threshold("hf-confidence", threshold)
    check_tokens("hf-confidence", "tokens", tokens)
    kind = AdaptiveConfidenceThreshold if adaptive else ConfidenceThreshold
    return kind(threshold, min(tokens, gamma_max))
