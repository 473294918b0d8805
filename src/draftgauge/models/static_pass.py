"""One pass of the static engine: everything that changes from pass to pass is in tensors, and no shape depends on it.

Such a pass can be captured as a CUDA graph. Letters in shapes as in :mod:`draftgauge.models.lean`; ``C`` is the number
of places of the cache that the pass sees, its *bucket*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgauge.models.lean import run_layers
from draftgauge.models.lean_attention import attend_causally, masks_by_layer
from draftgauge.models.lean_weights import LeanWeights


@dataclass(frozen=True)
class Places:
    """Where a pass reads and writes; memory that does not move while passes over it are in use.

    Attributes:
        cache: ``[layers, 2 KV, capacity, D]``.
        cos, sin: rotary tables ``[positions, bases, D]``.
        states: ``[positions, S, H]`` of the layers whose hidden states are kept, or None.
        state_layers: those ``S`` layers.
    """

    cache: Tensor
    cos: Tensor
    sin: Tensor
    states: Tensor | None
    state_layers: Sequence[int]

    def same_as(self, other: Places | None) -> bool:
        """Whether these are the same tensors."""
        return (
            other is not None
            and self.cache is other.cache
            and self.cos is other.cos
            and self.states is other.states
            and self.state_layers == other.state_layers
        )


class StaticPass:
    """``k`` tokens at any position, over the first ``C`` places of the cache."""

    def __init__(self, weights: LeanWeights, places: Places, count: int, bucket: int) -> None:
        """Prepare the inputs.

        Args:
            weights: of the decoder.
            places: what it reads and writes.
            count: ``k``.
            bucket: ``C``.
        """
        device, group = places.cache.device, weights.query_heads // weights.key_heads
        self._weights = weights
        self._places = places
        self._whole = places.cache.unbind()
        self._seen = places.cache[:, :, :bucket].unbind()
        self._tokens = torch.zeros(count, dtype=torch.int64, device=device)
        self._begin = torch.zeros(1, dtype=torch.int64, device=device)
        self._steps = torch.arange(count, device=device)
        self._steps_by_head = self._steps.repeat_interleave(group)[:, None]  # [k G, 1]
        self._columns = torch.arange(bucket, device=device)
        self._limits = torch.tensor([0.0, float("-inf")], dtype=places.cache.dtype, device=device).unbind()

    def feed(self, tokens: Tensor, begin: int) -> None:
        """Say which tokens ``[k]`` the next run takes in, and after how many cached ones."""
        self._tokens.copy_(tokens)
        self._begin.fill_(begin)

    def run(self) -> Tensor:
        """Take the tokens in; logits ``[k, V]`` in the model's dtype."""
        weights, whole, seen = self._weights, self._whole, self._seen
        query_heads, key_heads, mix = weights.query_heads, weights.key_heads, weights.mix
        positions = self._begin + self._steps
        cos, sin = self._places.cos.index_select(0, positions), self._places.sin.index_select(0, positions)
        masks = masks_by_layer(weights, self._columns, self._begin + self._steps_by_head, self._limits)  # [k G, C]

        def attend(layer: int, qkv: Tensor) -> Tensor:
            whole[layer].index_copy_(1, positions, qkv[:, query_heads:].transpose(0, 1))
            return attend_causally(qkv[:, :query_heads], seen[layer], key_heads, masks[layer], mix)

        def keep(layer: int, x: Tensor) -> None:
            if layer in self._places.state_layers:
                assert self._places.states is not None
                slot = self._places.state_layers.index(layer)
                self._places.states[:, slot].index_copy_(0, positions, x)

        hidden = run_layers(weights, self._tokens, cos, sin, attend, None if self._places.states is None else keep)
        return weights.head(weights.norm(hidden))
