"""Buffers that grow with a text: keys and values, hidden states, what drafters keep. They double, and are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftgauge.models.base import ModelSpec

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
