"""Hidden states of chosen layers, kept by position while a model takes in tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftgauge.models.base import ModelSpec

FIRST_CAPACITY = 2048  # positions that are held before the store first doubles


class HiddenStates:
    """The residual stream after some decoder layers, ``[positions, S, H]``, written in place beside a model's cache.

    A position's row is overwritten when the position is taken in again, so rolling the cache back needs nothing here.
    """

    def __init__(self, layers: Sequence[int], width: int, spec: ModelSpec) -> None:
        """An empty store.

        Args:
            layers: ``S`` decoder layers, counted from 0.
            width: ``H``, the width of the residual stream.
            spec: of the model, for device, dtype and context.
        """
        self.layers = tuple(layers)
        self._context = spec.context
        shape = (min(FIRST_CAPACITY, spec.context), len(self.layers), width)
        self._rows = torch.empty(shape, dtype=spec.dtype, device=spec.device)

    def rows(self, begin: int, end: int) -> Tensor:
        """``[end - begin, S, H]`` of some positions: a view."""
        return self._rows[begin:end]

    def places(self, begin: int, end: int) -> dict[int, Tensor]:
        """Where the states ``[end - begin, H]`` of each layer belong, by layer: views to be written to."""
        rows = self.reserve(begin, end)
        return dict(zip(self.layers, rows[begin:end].unbind(1), strict=True))

    def reserve(self, begin: int, end: int) -> Tensor:
        """The whole store ``[positions, S, H]`` with room up to ``end``; rows from ``begin`` on are to be written."""
        if end > len(self._rows):
            self._grow(min(max(end, 2 * len(self._rows)), self._context), begin)
        return self._rows

    def _grow(self, capacity: int, used: int) -> None:
        rows = self._rows.new_empty(capacity, *self._rows.shape[1:])
        rows[:used] = self._rows[:used]
        self._rows = rows


@contextmanager
def watching(module: PreTrainedModel, layers: Sequence[int], take: Callable[[int, Tensor], object]) -> Iterator[None]:
    """Inside the block ``take(layer, states)`` gets the output ``[B, k, H]`` of each of these decoder layers."""
    blocks = decoder_layers(module)

    def hook(layer: int) -> Callable[[nn.Module, object, Tensor], None]:
        def look(block: nn.Module, inputs: object, output: Tensor) -> None:
            take(layer, output)  # and return nothing: it would replace the output

        return look

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(blocks[layer].register_forward_hook(hook(layer)))
        yield


def decoder_layers(module: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a causal language model of transformers, first to last."""
    layers: nn.ModuleList = module.get_decoder().layers
    return layers
