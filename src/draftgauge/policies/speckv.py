"""SpecKV as a live controller: a small network predicts each candidate length's acceptance from the previous step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import LEVELS, UNCOMPRESSED, Compression
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Step
from draftgauge.policies.fitted import bundled_policy, register_fitted
from draftgauge.policies.spec import register_policy
from draftgauge.traces.costs import CostCurve

NAME = "speckv"
FEATURES = ("mean_entropy", "mean_confidence", "max_entropy", "min_confidence", "compression", "gamma")
"""What the network reads, as published; entropies in bits."""
CANDIDATES = (2, 4, 6, 8)
FIRST = 4  # length of a prompt's first draft: the fixed length that the paper compares with

Floats = NDArray[np.float64]


def code_of(compression: str) -> int:
    """The paper's 0, 1, 2 for fp16, int8 and nf4; others count as what has as many bits a weight."""
    if compression not in LEVELS:
        raise DraftgaugeError(
            f"policy {NAME} reads whether the target's weights have 16, 8 or 4 bits, which "
            f"{compression or 'this target'} does not say: name {NAME}:compression=nf4, =int8 or ={UNCOMPRESSED}"
        )
    return LEVELS[compression]


@dataclass(frozen=True)
class Network:
    """One hidden layer of ReLU units on :data:`FEATURES`; its output is an acceptance rate before clipping to 0..1.

    Attributes:
        hidden: ``[features, units]``.
        output: ``[units]``.
    """

    hidden: tuple[tuple[float, ...], ...]
    hidden_bias: tuple[float, ...]
    output: tuple[float, ...]
    output_bias: float

    def validate(self) -> None:
        units = len(self.hidden_bias)
        if len(self.hidden) != len(FEATURES) or any(len(row) != units for row in (*self.hidden, self.output)):
            raise DraftgaugeError(f"policy {NAME}: the network's tables do not fit together; fit it again")


@dataclass(frozen=True)
class SpecKVNumbers:
    """What a fitted SpecKV consists of: the network, the compressions it was trained on, and the target's where the
    cost curve does not name it."""

    network: Network
    compression: Compression = "uncompressed"
    fitted_on: tuple[Compression, ...] = ()


class SpecKV(PolicyBase):
    """``argmax over gamma of clip(rate(signals, compression, gamma), 0, 1) * gamma + 1``, on the previous step's
    signals.

    "SpecKV: Adaptive Speculative Decoding with Compression-Aware Gamma Selection" (arXiv 2605.02888). The paper reads
    the signals of the very tokens whose number it chooses, which do not exist yet. Here the signals of the step before
    take their place. A prompt begins with 4 tokens. The objective is tokens per step, so cost plays no part.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.ENTROPY, SignalName.CONFIDENCE})

    def __init__(self, network: Network, compression: Compression, gamma_max: int) -> None:
        """Choose among the published candidates up to ``gamma_max``; ``gamma_max`` itself if it is below them all."""
        network.validate()
        self.candidates = [gamma for gamma in CANDIDATES if gamma <= gamma_max] or [gamma_max]
        self._gammas = np.asarray(self.candidates, np.float64)
        hidden = np.asarray(network.hidden)
        self._weights = hidden[:4]
        # [candidates, units]: the part of the hidden layer's input that does not depend on signals
        self._given = (
            np.asarray(network.hidden_bias) + code_of(compression) * hidden[4] + self._gammas[:, None] * hidden[5]
        )
        self._output, self._output_bias = np.asarray(network.output), network.output_bias
        self._first = min(FIRST, gamma_max)
        self.reset()

    def reset(self) -> None:
        self.gamma = self._first

    def observe(self, step: Step) -> None:
        if step.signals:
            entropies = [signal.entropy for signal in step.signals]
            confidences = [signal.confidence for signal in step.signals]
            means = sum(entropies) / len(entropies), sum(confidences) / len(confidences)
            rates = self.rates((*means, max(entropies), min(confidences)))
            self.gamma = self.candidates[int((rates * self._gammas).argmax())]

    def rates(self, summary: Sequence[float]) -> Floats:
        units = np.maximum(np.asarray(summary) @ self._weights + self._given, 0.0)
        rates: Floats = np.clip(units @ self._output + self._output_bias, 0.0, 1.0)
        return rates


@register_fitted(NAME, FEATURES)
def _from_numbers(parameters: Mapping[str, Any], gamma_max: int, _: CostCurve | None, compression: str) -> Policy:
    numbers = from_mapping(SpecKVNumbers, parameters, f"fitted policy {NAME}")
    # The target's own compression where the network has seen one like it.
    known = compression and code_of(compression) in {code_of(each) for each in numbers.fitted_on}
    return SpecKV(numbers.network, compression if known else numbers.compression, gamma_max)


@register_policy(
    NAME,
    "the length with the most predicted tokens a step (SpecKV)",
    complexity=129,
    grid={"compression": (UNCOMPRESSED, "int8", "nf4"), "gamma_max": (2, 4, 6, 8)},
)
def speckv(compression: Compression, *, gamma_max: int) -> Policy:
    numbers = from_mapping(SpecKVNumbers, bundled_policy(NAME).parameters, "bundled policy")
    return SpecKV(numbers.network, compression, gamma_max)
