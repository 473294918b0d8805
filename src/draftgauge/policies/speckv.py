"""SpecKV as a live controller: a small network predicts each candidate length's acceptance from causal signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Signal, SignalArrays, Step, StepCosts
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.fitted import register_fitted
from draftgauge.policies.registry import register_policy

NAME = "speckv"
FEATURES = ("mean_entropy", "mean_confidence", "max_entropy", "min_confidence", "compression", "gamma")
"""What the network reads, as published; entropies in bits."""
CANDIDATES = (2, 4, 6, 8)
COMPRESSION_CODES = {"none": 0, "fp32": 0, "fp16": 0, "bf16": 0, "int8": 1, "bnb-int8": 1, "nf4": 2, "bnb-nf4": 2}
"""The paper's 0, 1, 2 for fp16, int8, nf4; other targets that are not quantised count as fp16, and quantised beforehand
is as quantised here.
"""
FIRST = 4
"""Length of a prompt's first draft in the reading that needs a step before: the fixed length that the paper compares
with.
"""

Reading = Literal["previous", "two"]
Compression = Literal["none", "fp32", "fp16", "bf16", "int8", "bnb-int8", "nf4", "bnb-nf4"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Network:
    """One hidden layer of ReLU units on :data:`FEATURES`; its output is an acceptance rate before clipping to 0..1.

    Attributes:
        hidden: ``[features, units]``.
        hidden_bias: ``[units]``.
        output: ``[units]``.
        output_bias: added to their sum.
    """

    hidden: tuple[tuple[float, ...], ...]
    hidden_bias: tuple[float, ...]
    output: tuple[float, ...]
    output_bias: float

    def validate(self) -> None:
        """Raise :class:`DraftgaugeError` if the shapes do not fit together."""
        units = len(self.hidden_bias)
        if len(self.hidden) != len(FEATURES) or any(len(row) != units for row in (*self.hidden, self.output)):
            raise DraftgaugeError(f"policy {NAME}: the network's tables do not fit together; fit it again")


@dataclass(frozen=True)
class SpecKVNumbers:
    """What a fitted SpecKV consists of.

    Attributes:
        previous: network of the reading "previous".
        two: network of the reading "two".
        reading: the one to use.
        compression: of the target, one of the keys of :data:`COMPRESSION_CODES`, where costs do not say it.
        fitted_on: compressions that the networks have seen.
    """

    previous: Network
    two: Network
    reading: Reading = "previous"
    compression: Compression = "none"
    fitted_on: tuple[Compression, ...] = ()

    def of(self, compression: str) -> SpecKVNumbers:
        """The same for a target of this compression; as they are if the networks have not seen any such."""
        code = COMPRESSION_CODES.get(compression)
        seen = {COMPRESSION_CODES[each]: each for each in self.fitted_on}
        return self if code is None else replace(self, compression=seen.get(code, self.compression))


class GammaChooser:
    """The published choice: ``argmax over gamma of clip(rate(signals, compression, gamma), 0, 1) * gamma + 1``."""

    def __init__(self, network: Network, compression: Compression, gamma_max: int) -> None:
        """Choose among the published candidates up to ``gamma_max``; ``gamma_max`` itself if it is below them all."""
        network.validate()
        candidates = [gamma for gamma in CANDIDATES if gamma <= gamma_max] or [gamma_max]
        hidden = np.asarray(network.hidden)
        self.candidates = tuple(candidates)
        self._gammas = np.asarray(candidates, np.float64)
        self._weights = hidden[:4]
        # [candidates, units]: the part of the hidden layer's input that does not depend on signals
        self._given = (
            np.asarray(network.hidden_bias)
            + COMPRESSION_CODES[compression] * hidden[4]
            + self._gammas[:, None] * hidden[5]
        )
        self._output = np.asarray(network.output)
        self._output_bias = network.output_bias

    def choose(self, summary: Sequence[float]) -> int:
        """The length for one step, from the four figures of :func:`summarise`."""
        units = np.maximum(np.asarray(summary) @ self._weights + self._given, 0.0)
        return self.candidates[int(self._expected(units).argmax())]

    def choose_all(self, summaries: Floats) -> NDArray[np.int64]:
        """The lengths for many steps, from figures ``[rows, 4]``."""
        units = np.maximum((summaries @ self._weights)[:, None, :] + self._given, 0.0)
        lengths: NDArray[np.int64] = np.asarray(self.candidates)[self._expected(units).argmax(axis=-1)]
        return lengths

    def _expected(self, units: Floats) -> Floats:
        """Expected tokens of a step by candidate, from the hidden layer ``[..., candidates, units]``."""
        expected: Floats = (
            np.minimum(np.maximum(units @ self._output + self._output_bias, 0.0), 1.0) * self._gammas + 1.0
        )
        return expected


class SpecKVPrevious(PolicyBase):
    """SpecKV on the signals of the previous step: the length is set before drafting, from what the last step's draft
    looked like.

    "SpecKV: Adaptive Speculative Decoding with Compression-Aware Gamma Selection" (arXiv 2605.02888). The paper reads
    the signals of the very tokens whose number it chooses, which do not exist yet; the newest that do are those of the
    step before. A prompt begins with 4 tokens. Its objective is tokens per step, so cost plays no part.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.ENTROPY, SignalName.CONFIDENCE})

    def __init__(self, network: Network, compression: Compression, gamma_max: int) -> None:
        """Choose among the published candidates up to ``gamma_max``."""
        self._chooser = GammaChooser(network, compression, gamma_max)
        self._first = min(FIRST, gamma_max)
        self._length = self._first

    def reset(self) -> None:
        self._length = self._first

    def limit(self) -> int:
        return self._length

    def observe(self, step: Step) -> None:
        """Choose the next step's length; a step that drafted nothing leaves it."""
        if step.signals:
            self._length = self._chooser.choose(summarise(step.signals))


class SpecKVTwo(PolicyBase):
    """SpecKV after two tokens: two are drafted in any case, and their signals choose how many there will be.

    As :class:`SpecKVPrevious`, in the other reading that a live controller could follow. 2 is the shortest candidate.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.ENTROPY, SignalName.CONFIDENCE})

    def __init__(self, network: Network, compression: Compression, gamma_max: int) -> None:
        """Choose among the published candidates up to ``gamma_max``."""
        self._chooser = GammaChooser(network, compression, gamma_max)
        self._longest = self._chooser.candidates[-1]
        self._first: Signal | None = None
        self._length = self._longest

    def limit(self) -> int:
        return self._longest

    def keep_drafting(self, signal: Signal) -> bool:
        if signal.depth == 1:
            self._first = signal
            return True
        if signal.depth == 2:
            assert self._first is not None, "the second token follows the first"
            self._length = self._chooser.choose(summarise((self._first, signal)))
        return signal.depth < self._length

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        """The length chosen from the first two tokens at every position, ``[positions]``."""
        if self._longest < 2:
            return np.full(signals.positions, self._longest)
        entropy, confidence = signals.entropy[:, :2].astype(np.float64), signals.confidence[:, :2].astype(np.float64)
        summaries = np.stack([entropy.mean(1), confidence.mean(1), entropy.max(1), confidence.min(1)], axis=1)
        return self._chooser.choose_all(summaries)


def summarise(signals: Sequence[Signal]) -> tuple[float, float, float, float]:
    """Mean entropy, mean confidence, highest entropy (bits) and lowest confidence of drafted tokens, at least one."""
    entropies = [signal.entropy for signal in signals]
    confidences = [signal.confidence for signal in signals]
    count = len(signals)
    return sum(entropies) / count, sum(confidences) / count, max(entropies), min(confidences)


def make_speckv(numbers: SpecKVNumbers, gamma_max: int) -> Policy:
    """The policy of the reading that the numbers ask for."""
    if numbers.reading == "two":
        return SpecKVTwo(numbers.two, numbers.compression, gamma_max)
    return SpecKVPrevious(numbers.previous, numbers.compression, gamma_max)


@register_fitted(NAME, FEATURES)
def _from_numbers(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
    numbers = from_mapping(SpecKVNumbers, parameters, f"fitted policy {NAME}")
    return make_speckv(numbers if costs is None else numbers.of(costs.compression), gamma_max)


@register_policy(
    NAME,
    "the length with the most predicted tokens a step (SpecKV)",
    complexity=129,
    grid={"reading": ("previous", "two"), "compression": ("none", "int8", "nf4"), "gamma_max": (2, 4, 6, 8)},
)
def speckv(reading: Reading = "previous", compression: Compression = "none", *, gamma_max: int) -> Policy:
    """The length with the highest predicted tokens per step; the networks are the bundled ones."""
    fitted = bundled_policy(NAME)
    numbers = from_mapping(SpecKVNumbers, fitted.parameters, "bundled policy")
    return make_speckv(replace(numbers, reading=reading, compression=compression), gamma_max)
