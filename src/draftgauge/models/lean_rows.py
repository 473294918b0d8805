"""Many texts in one lean decoder: a cache with a row a text, and passes over the next tokens of several rows together.

Letters in shapes: ``R`` rows of the cache, ``T`` tokens of a pass, ``L`` the longest text of the pass, ``H`` query
heads, ``KV`` key/value heads, ``D`` head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.models.lean import LeanModel, logits, run_layers
from draftgauge.models.lean_attention import attend_causally, causal_mask
from draftgauge.models.spec import check_context

FIRST_ROWS, FIRST_CAPACITY = 4, 512  # that the cache holds before it first doubles


class LeanRows:
    """Texts that a lean decoder takes in side by side; each has its own row of keys and values.

    Logits are those of :class:`~draftgauge.models.lean.LeanModel` up to the rounding of differently ordered sums.
    """

    def __init__(self, model: LeanModel) -> None:
        """Share the weights of a model; its own cache is not touched."""
        self.spec = model.spec
        self._model = model
        self._weights = model._weights
        self._lengths: dict[int, int] = {}
        self._cache = self._allocate(FIRST_ROWS, min(FIRST_CAPACITY, self.spec.context))  # [R, layers, 2 KV, L, D]

    def open(self) -> int:
        """A new, empty row."""
        row = next(index for index in range(len(self._lengths) + 1) if index not in self._lengths)
        if row >= len(self._cache):
            self._grow(2 * len(self._cache), self._cache.shape[3])
        self._lengths[row] = 0
        return row

    def close(self, row: int) -> None:
        """Give a row back."""
        del self._lengths[row]

    def length(self, row: int) -> int:
        """Tokens in a row."""
        return self._lengths[row]

    def truncate(self, row: int, length: int) -> None:
        """Keep the first ``length`` tokens of a row."""
        assert 0 <= length <= self._lengths[row], (length, self._lengths[row])
        self._lengths[row] = length

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Tensor) -> None:
        """Append ``[k]`` tokens to one row, for their keys and values alone."""
        begin = self._lengths[row]
        end = begin + len(tokens)
        self._reserve(end)
        cos, sin = self._model.rotary(end)
        cache, heads, key_heads = self._cache[row], self._weights.query_heads, self._weights.key_heads
        mask = causal_mask(len(tokens), end, self._weights, cache)

        def attend(layer: int, qkv: Tensor) -> Tensor:
            cache[layer, :, begin:end] = qkv[:, heads:].transpose(0, 1)
            return attend_causally(qkv[:, :heads], cache[layer, :, :end], key_heads, mask)

        run_layers(self._weights, tokens, cos[begin:end], sin[begin:end], attend)
        self._lengths[row] = end

    @torch.inference_mode()
    def step(self, rows: Sequence[int], tokens: Sequence[Tensor]) -> Tensor:
        """Append tokens to several rows in one pass.

        Args:
            rows: each at most once.
            tokens: of each row, ``[k]`` int64 with at least one.

        Returns:
            float32 ``[len(rows), vocabulary]``: the logits after the last token of each row.

        Raises:
            ModelError: if a row would exceed the model's context.
        """
        counts = torch.tensor([len(each) for each in tokens])
        begins = torch.tensor([self._lengths[row] for row in rows])
        ends = begins + counts
        longest = int(ends.max())
        self._reserve(longest)
        last = counts.cumsum(0) - 1
        device = self.spec.device
        owner = torch.tensor(rows).repeat_interleave(counts).to(device)  # [T] row of each token
        inside = torch.arange(int(counts.sum())) - (last + 1 - counts).repeat_interleave(counts)
        position = (begins.repeat_interleave(counts) + inside).to(device)  # [T]
        cos, sin = self._model.rotary(longest)
        attend = _RowAttention(self, owner, position, longest)
        hidden = run_layers(self._weights, torch.cat(list(tokens)), cos[position], sin[position], attend)
        for row, end in zip(rows, ends.tolist(), strict=True):
            self._lengths[row] = end
        return logits(self._weights, hidden[last.to(device)])

    def _reserve(self, length: int) -> None:
        if length > self._cache.shape[3]:
            check_context(self.spec, length)
            self._grow(len(self._cache), min(max(length, 2 * self._cache.shape[3]), self.spec.context))

    def _grow(self, rows: int, capacity: int) -> None:
        before = self._cache
        self._cache = self._allocate(rows, capacity)
        self._cache[: len(before), :, :, : before.shape[3]] = before

    def _allocate(self, rows: int, capacity: int) -> Tensor:
        weights = self._weights
        shape = (rows, len(weights.layers), 2 * weights.key_heads, capacity, weights.head_dim)
        return torch.zeros(shape, dtype=self.spec.dtype, device=self.spec.device)


class _RowAttention:
    """Attention of ``T`` tokens, each over its own row up to its own position."""

    def __init__(self, rows: LeanRows, owner: Tensor, position: Tensor, longest: int) -> None:
        self._cache, self._weights = rows._cache, rows._weights
        self._owner, self._position, self._longest = owner, position, longest
        hidden = torch.arange(longest, device=position.device) > position[:, None]
        mask = torch.zeros(hidden.shape, dtype=rows.spec.dtype, device=position.device)
        self._mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]  # [T, 1, 1, L]

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Attend with rotated ``[T, H + 2 KV, D]``; ``[T, H D]``."""
        heads, key_heads = self._weights.query_heads, self._weights.key_heads
        self._cache[self._owner, layer, :, self._position] = qkv[:, heads:]
        seen = self._cache[self._owner, layer, :, : self._longest]  # [T, 2 KV, L, D]
        grouped = qkv[:, :heads].reshape(len(qkv), key_heads, heads // key_heads, -1)
        mixed = F.scaled_dot_product_attention(grouped, seen[:, :key_heads], seen[:, key_heads:], attn_mask=self._mask)
        return mixed.reshape(len(qkv), -1)
