"""Many texts in one lean decoder: a cache with a row a text, and passes over the next tokens of several rows together.

Letters in shapes: ``R`` rows of the cache, ``T`` tokens of a pass, ``L`` the longest text of the pass; others as in
:mod:`draftgauge.models.row_layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from draftgauge.models.attention_kernels import attention_kernels
from draftgauge.models.device import upload
from draftgauge.models.lean import PREFILL_CHUNK, LeanModel, logits, run_layers
from draftgauge.models.lean_attention import attend_over, masks_by_layer
from draftgauge.models.row_layout import Shape, attend_by_row, lay_out
from draftgauge.models.spec import check_context

FIRST_ROWS, FIRST_CAPACITY = 4, 512  # that the cache holds before it first doubles
SPARSE = 2  # rows spanned for each row of a pass, from where on attention copies those of the pass side by side


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
        self._limits = torch.tensor([0.0, float("-inf")], dtype=self.spec.dtype, device=self.spec.device).unbind()
        self._cache = self._allocate(FIRST_ROWS, min(FIRST_CAPACITY, self.spec.context))

    @property
    def rows(self) -> int:
        """Rows that the cache holds before it grows, open or not."""
        return self._cache.shape[1]

    def open(self) -> int:
        """A new, empty row."""
        row = next(index for index in range(len(self._lengths) + 1) if index not in self._lengths)
        if row >= self.rows:
            self._grow(2 * self.rows, self._cache.shape[3])
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
    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        """Append tokens to one row, for their keys and values alone."""
        self._append(row, tokens)

    @torch.inference_mode()
    def step(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Append tokens to several rows in one pass.

        Args:
            rows: increasing.
            tokens: of each row, at least one.

        Returns:
            float32 ``[len(rows), vocabulary]``: the logits after the last token of each row.

        Raises:
            ModelError: if a row would exceed the model's context.
        """
        hidden = self._append(rows[0], tokens[0])[-1:] if len(rows) == 1 else self._append_together(rows, tokens)
        return logits(self._weights, hidden)

    def _append(self, row: int, tokens: Sequence[int]) -> Tensor:
        """Take in tokens of one row, as :class:`LeanModel` does; hidden states of the last ones."""
        self._reserve(self._lengths[row] + len(tokens))
        with attention_kernels(self.spec.device):
            for chunk in upload(tokens, self.spec.device).split(PREFILL_CHUNK):
                hidden = self._append_chunk(row, chunk)
        return hidden

    def _append_chunk(self, row: int, tokens: Tensor) -> Tensor:
        begin, end = self._lengths[row], self._lengths[row] + len(tokens)
        cos, sin = self._model.rotary(end)
        attend = attend_over(self._weights, self._cache[:, row], begin, end)
        hidden = run_layers(self._weights, tokens, cos[begin:end], sin[begin:end], attend)
        self._lengths[row] = end
        return hidden

    def _append_together(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Take in tokens of several rows; hidden states ``[len(rows), hidden]`` of the last one of each."""
        begins, counts = [self._lengths[row] for row in rows], [len(each) for each in tokens]
        ends = [begin + count for begin, count in zip(begins, counts, strict=True)]
        longest = max(ends)
        self._reserve(longest)
        spanned = rows[-1] + 1 - rows[0]
        copied = spanned > SPARSE * len(rows)
        first, spanned = (0, len(rows)) if copied else (rows[0], spanned)
        shape = Shape(first, spanned, sum(counts), max(counts), longest)
        places = range(len(rows)) if copied else rows
        last = [end - 1 for end in accumulate(counts)]
        fed = [token for each in tokens for token in each]
        uploaded = upload([*fed, *last, *rows, *lay_out(places, begins, counts, shape)], self.spec.device)
        sizes = (shape.tokens, len(rows), len(rows), shape.tokens, shape.tokens, shape.tokens, spanned)
        taken, ending, chosen, owner, position, slot, starts = uploaded.split(sizes)
        if copied:
            owner = chosen[owner]
        cache = self._cache[:, :, :, :longest] if copied else self._cache[:, first : first + spanned, :, :longest]
        masks = self._masks(starts, shape)
        cos, sin = self._model.rotary(longest)

        heads, mix, laid = self._weights.query_heads, self._weights.mix, None if shape.full else slot

        def attend(layer: int, qkv: Tensor) -> Tensor:
            self._cache[layer][owner, :, position] = qkv[:, heads:]
            seen = cache[layer].index_select(0, chosen) if copied else cache[layer]
            return attend_by_row(qkv[:, :heads], seen, masks[layer], laid, mix)

        with attention_kernels(self.spec.device):
            hidden = run_layers(
                self._weights, taken, cos.index_select(0, position), sin.index_select(0, position), attend
            )
        self._lengths.update(zip(rows, ends, strict=True))
        return hidden if shape.tokens == len(rows) else hidden[ending]

    def _masks(self, starts: Tensor, shape: Shape) -> Sequence[Tensor]:
        """By layer, additive ``[B, 1, W G, L]``: a token sees its row up to itself."""
        group = self._weights.query_heads // self._weights.key_heads
        steps = torch.arange(shape.widest, device=starts.device).repeat_interleave(group)[:, None]
        columns = torch.arange(shape.bucket, device=starts.device)
        return masks_by_layer(self._weights, columns, starts[:, None, None, None] + steps, self._limits)

    def _reserve(self, length: int) -> None:
        capacity = self._cache.shape[3]
        if length > capacity:
            check_context(self.spec, length)
            self._grow(self.rows, min(max(length, 2 * capacity), self.spec.context))

    def _grow(self, rows: int, capacity: int) -> None:
        before = self._cache
        self._cache = self._allocate(rows, capacity)
        self._cache[:, : before.shape[1], :, : before.shape[3]] = before

    def _allocate(self, rows: int, capacity: int) -> Tensor:
        """``[layers, R, 2 KV, capacity, D]`` zeros: masked keys that were never written must still be finite."""
        weights = self._weights
        shape = (len(weights.layers), rows, 2 * weights.key_heads, capacity, weights.head_dim)
        return torch.zeros(shape, dtype=self.spec.dtype, device=self.spec.device)
