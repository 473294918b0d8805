"""Stop where the draft's entropy says that the token is unlikely to be accepted: SVIP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import (
    NATS_PER_BIT,
    Policy,
    PolicyBase,
    Signal,
    SignalArrays,
    check_positive,
    check_tokens,
    first_stop,
)
from draftgauge.policies.spec import register_policy


@dataclass(frozen=True)
class EntropyThreshold(PolicyBase):
    """Stops after the first drafted token whose ``sqrt(scale * H)`` exceeds ``threshold``; that token is still
    verified.

    SVIP, the self-verification length policy (Zhang et al., arXiv 2411.18462, "Draft Model Knows When to Stop", section
    4). By Pinsker's inequality a token's acceptance probability is at least 1 minus the root of a divergence between
    draft and target. The paper takes this divergence to be proportional to the draft's entropy ``H``. The defaults are
    those of the released code (Geralt-Targaryen/SVIP): scale 0.15, threshold 0.3, at most 40 tokens. ``H`` is in nats
    there; signals are in bits, and converted.

    Attributes:
        threshold: of the bound of the rejection probability, above 0.
        scale: of the entropy, above 0.
    """

    threshold: float
    scale: float
    gamma: int
    reads: ClassVar[Reads] = frozenset({SignalName.ENTROPY})

    def keep_drafting(self, signal: Signal) -> bool:
        return math.sqrt(self.scale * (NATS_PER_BIT * max(signal.entropy, 0.0))) <= self.threshold

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        bound = np.sqrt(self.scale * (NATS_PER_BIT * np.maximum(signals.entropy.astype(np.float64), 0.0)))
        return first_stop(bound > self.threshold, self.gamma)  # NaN is not above


@register_policy(
    "svip",
    "drafts on while the draft's entropy is low (SVIP)",
    grid={"threshold": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8), "tokens": (2, 3, 4, 6, 8, 40)},
)
def svip(threshold: float = 0.3, scale: float = 0.15, tokens: int = 40, *, gamma_max: int) -> Policy:
    check_positive("svip", "threshold", threshold)
    check_positive("svip", "scale", scale)
    check_tokens("svip", "tokens", tokens)
    return EntropyThreshold(threshold, scale, min(tokens, gamma_max))
