"""A causal language model with a cache that can be rolled back: what drafting and verifying ask of a model.

Its buffers grow with the text: keys and values, hidden states, what drafters keep. They double, and are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelSpec:
    """What decoding must know of a model.

    Attributes:
        context: longest sequence in tokens.
        engine: "lean", "static", "modules", "gguf", "openvino", or one of these with "-fast"; see docs/engines.md.
        attention: which attention transformers was loaded with.
        context_reason: why ``context`` is less than the configuration says; empty if it is not.
        branches: the most branches that grow together.
        recurrent: whether rolling back takes work, as states have to be made again.
        kernels: of the gguf engines, instruction sets that the library uses, and how it holds the weights.
    """

    vocabulary: int
    context: int
    device: torch.device
    dtype: torch.dtype
    family: str
    engine: str
    attention: str = ""
    context_reason: str = ""
    branches: int = 1 << 30
    recurrent: bool = False
    kernels: str = ""

    @property
    def keeps_on_device(self) -> bool:
        """Whether drafted tokens are best read once a step: on an accelerator, and on the static engine."""
        return self.device.type != "cpu" or self.engine == "static"


class BranchSession(Protocol):
    """Branches off one cached sequence that grow together, one token a step; they do not see each other."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token ``[N]`` to every branch; float32 logits ``[N, vocabulary]`` after it.

        Raises:
            ModelError: if a branch would exceed the model's context.
        """

    def keep(self, rows: Tensor) -> None:
        """Go on with these branches only, in this order; ``rows`` are int64 indices into the present ones."""


class CachedModel(Protocol):
    """One sequence (batch of one) with its KV cache: ``forward`` appends, ``truncate`` rolls back."""

    spec: ModelSpec

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model behind it with the same weights: None in the gguf and openvino engines, which
        have none."""

    @property
    def length(self) -> int:
        """Tokens in the cache."""

    def reset(self) -> None:
        """Empty the cache."""

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens ``[k]``, int64 on the model's device, at least one.

        Returns:
            float32 logits ``[k, vocabulary]``, row ``i`` for the token after ``tokens[i]``; of the last token alone,
            ``[1, vocabulary]``, with ``last_only``.

        Raises:
            ModelError: if the sequence would exceed ``spec.context``.
        """

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens of the cache; the others are forgotten."""

    def branches(self, starts: Tensor) -> BranchSession:
        """Open short branches off the cached sequence, to be decoded together, the cache left as it is.

        Branch ``i`` continues the first ``starts[i]`` cached tokens. The session ends with the next ``forward``,
        ``truncate`` or ``reset``. Its memory grows with ``N`` times the length of the cache and the vocabulary.

        Args:
            starts: ``[N]`` int64 on the model's device, each in ``1..length``.

        Raises:
            ModelError: if a start is outside the cached sequence.
        """


def skeleton_of(model: CachedModel) -> PreTrainedModel | None:
    """The transformers model behind an engine for its configuration and structure: it may lack weights, which
    ``module`` gives back."""
    return getattr(model, "skeleton", None) or model.module


FIRST_CAPACITY = 2048  # tokens that a model's buffers hold before they first double


def room_for(needed: int, held: int, first: int | None = None) -> int:
    """Places of a buffer that held so many and needs more: twice as many, or what is needed."""
    return max(needed, 2 * held, FIRST_CAPACITY if first is None else first)


def grown(buffer: Tensor, *shape: int) -> Tensor:
    """A larger buffer that begins with another one.

    New places are zeros: what is read behind a mask at full capacity must at least be numbers.
    """
    larger = buffer.new_zeros(shape)
    larger[tuple(slice(size) for size in buffer.shape)] = buffer
    return larger


def most_places(longest: int, context: int) -> int:
    """Places that a model's cache takes at once, at most, while it grows up to a text of ``longest`` tokens."""
    first = min(FIRST_CAPACITY, context)
    if longest <= first:
        return first
    outgrown = longest - 1
    return outgrown + min(2 * outgrown, context)


class HiddenStates:
    """The residual stream after some decoder layers, ``[positions, S, H]``, written in place beside a model's cache.

    A position's row is overwritten when the position is taken in again, so rolling the cache back needs nothing here.
    """

    def __init__(self, layers: Sequence[int], width: int, spec: ModelSpec) -> None:
        """An empty store for ``S`` decoder layers, counted from 0, and a residual stream of this width ``H``."""
        self.layers = tuple(layers)
        self._context = spec.context
        shape = (min(room_for(0, 0), spec.context), len(self.layers), width)
        self._rows = torch.zeros(shape, dtype=spec.dtype, device=spec.device)

    def rows(self, begin: int, end: int) -> Tensor:
        return self._rows[begin:end]

    def keep(self, begin: int, end: int) -> Callable[[int, Tensor], None]:
        """Takes a layer and the states ``[end - begin, H]`` that it gives at these positions."""
        places = dict(zip(self.layers, self.reserve(end)[begin:end].unbind(1), strict=True))

        def keep(layer: int, states: Tensor) -> None:
            if layer in places:
                places[layer].copy_(states)

        return keep

    def reserve(self, end: int) -> Tensor:
        """The whole store ``[positions, S, H]`` with room up to ``end``."""
        if end > (held := len(self._rows)):
            self._rows = grown(self._rows, min(room_for(end, held), self._context), *self._rows.shape[1:])
        return self._rows
