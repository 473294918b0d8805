"""A trained head predicts whether each drafted token stands: SpecDec++."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import DISTRIBUTION, Reads
from draftgauge.policies.base import (
    LEAST_PROBABILITY,
    Policy,
    PolicyBase,
    Signal,
    SignalArrays,
    StepCosts,
    all_nats,
    nats,
)
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_share, check_tokens
from draftgauge.policies.fitted import register_fitted
from draftgauge.policies.registry import register_policy

NAME = "specdec++"
FEATURES = (
    "confidence",
    "margin",
    "root_entropy",  # of nats
    "log_confidence",
    "log_depth",
    "log_product_of_confidences",
    "lowest_confidence",
)
"""What the head reads of a drafted token and those before it in the step."""


@dataclass(frozen=True)
class AcceptanceHead:
    """A linear head on :data:`FEATURES`: the chance that a token stands if those before it do is ``sigmoid(weights x +
    bias)``.

    Attributes:
        weights: one a feature.
        bias: added to their sum.
        threshold: of the chance that at least one token is rejected; drafting stops above it.
        minimum: tokens that are drafted in any case.
    """

    weights: tuple[float, ...]
    bias: float
    threshold: float = 0.7
    minimum: int = 2

    def validate(self) -> None:
        """Raise :class:`DraftgaugeError` naming what cannot be."""
        if len(self.weights) != len(FEATURES):
            raise DraftgaugeError(
                f"policy {NAME}: the head has {len(self.weights)} weights, not {len(FEATURES)}; fit it again"
            )
        check_share(NAME, "threshold", self.threshold)
        check_tokens(NAME, "minimum", self.minimum)


class SpecDecPlusPlus(PolicyBase):
    """Stops once the predicted chance that at least one drafted token is rejected exceeds the threshold.

    Huang et al. 2024, "SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths" (arXiv 2405.19715,
    sections 4.2 and 5.1): ``1 - prod P(token i stands | those before it do) > threshold``, at least 2 tokens, threshold
    0.7 (0.3 in the example of the released code), a head trained by cross-entropy in which rejected tokens weigh 6. The
    paper's head reads the draft's hidden state; ours reads causal signals (:data:`FEATURES`), so that a trace is enough
    to fit and replay it, and it is the linear one of the paper's ablation over depths. The hidden state of a token is
    known one pass of the draft later than its signals, so the paper's product lacks the newest token and ours has it.
    """

    reads: ClassVar[Reads] = DISTRIBUTION

    def __init__(self, head: AcceptanceHead, gamma: int) -> None:
        """Draft at most ``gamma`` tokens."""
        head.validate()
        self.head = head
        self.gamma = gamma
        self._log_product = 0.0  # of the step's confidences
        self._lowest = 1.0  # of them
        self._all_stand = 1.0  # predicted chance

    def limit(self) -> int:
        self._log_product = 0.0
        self._lowest = self._all_stand = 1.0
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        confidence = max(signal.confidence, LEAST_PROBABILITY)
        log_confidence = math.log(confidence)
        self._log_product += log_confidence
        self._lowest = min(self._lowest, confidence)
        c, m, e, lc, ld, lp, low = self.head.weights
        logit = c * confidence + m * signal.margin + e * math.sqrt(nats(signal.entropy)) + lc * log_confidence
        logit += ld * math.log(signal.depth) + lp * self._log_product + low * self._lowest + self.head.bias
        self._all_stand /= 1.0 + math.exp(-logit)
        return signal.depth < self.head.minimum or 1.0 - self._all_stand <= self.head.threshold

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """Depth at which a rejection has become too likely, else ``gamma``; ``[positions]``."""
        lengths = np.full(signals.positions, self.gamma, np.int64)
        drafting = np.arange(len(lengths))
        log_product, lowest, all_stand = np.zeros(len(lengths)), np.ones(len(lengths)), np.ones(len(lengths))
        for depth in range(1, self.gamma):
            features, log_product, lowest = _features(depth, signals, drafting, log_product, lowest)
            all_stand = all_stand / (1.0 + np.exp(-(features @ np.asarray(self.head.weights) + self.head.bias)))
            stops = (
                1.0 - all_stand > self.head.threshold
                if depth >= self.head.minimum
                else np.zeros(len(drafting), np.bool_)
            )
            lengths[drafting[stops]] = depth
            drafting, log_product, lowest, all_stand = (
                values[~stops] for values in (drafting, log_product, lowest, all_stand)
            )
        return lengths


def _features(
    depth: int,
    signals: SignalArrays,
    rows: NDArray[np.int64],
    log_product: NDArray[np.float64],
    lowest: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """At one depth of some rows: features ``[rows, features]``, and the updated product and lowest confidence."""
    column = depth - 1
    confidence = np.maximum(signals.confidence[rows, column].astype(np.float64), LEAST_PROBABILITY)
    margin, entropy = signals.margin[rows, column].astype(np.float64), all_nats(signals.entropy[rows, column])
    log_confidence = np.log(confidence)
    log_product = log_product + log_confidence
    lowest = np.minimum(lowest, confidence)
    log_depth = np.full(len(confidence), math.log(depth))
    columns = (confidence, margin, np.sqrt(entropy), log_confidence, log_depth, log_product, lowest)
    return np.stack(columns, axis=1), log_product, lowest


def dense_features(signals: SignalArrays) -> NDArray[np.float64]:
    """``[positions, gamma_max, features]`` of every drafted token, NaN where nothing was drafted; for fitting."""
    rows, gamma_max = signals.confidence.shape
    log_product, lowest = np.zeros(rows), np.ones(rows)
    features = np.empty((rows, gamma_max, len(FEATURES)))
    for depth in range(1, gamma_max + 1):
        features[:, depth - 1], log_product, lowest = _features(depth, signals, np.arange(rows), log_product, lowest)
    return features


@register_fitted(NAME, FEATURES)
def _from_numbers(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
    return SpecDecPlusPlus(from_mapping(AcceptanceHead, parameters, f"fitted policy {NAME}"), gamma_max)


@register_policy(
    NAME,
    "drafts on until a rejection is likely, by a trained head (SpecDec++)",
    complexity=10,
    grid={"threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95), "minimum": (1, 2)},
)
def specdec(threshold: float = 0.7, minimum: int = 2, *, gamma_max: int) -> Policy:
    """Stop at a high predicted chance of a rejection; the head is the bundled one."""
    fitted = bundled_policy(NAME)
    head = from_mapping(AcceptanceHead, fitted.parameters, "bundled policy")
    return SpecDecPlusPlus(replace(head, threshold=threshold, minimum=minimum), min(gamma_max, fitted.gamma_max))
