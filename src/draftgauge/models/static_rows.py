"""The static engine for a batch: a cache with a row for each sequence, and passes over tokens of several rows together.

A pass takes ``T`` tokens, possibly another number of each row. All of them go through the linears side by side; for
attention, queries are laid out by row, padded to the longest of the pass. Letters in shapes as in
:mod:`draftgauge.models.lean`; ``R`` rows of the cache, ``B`` rows of a pass, ``W`` most tokens of one of them, ``C``
places of the cache that the pass sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from draftgauge.core.errors import ModelError
from draftgauge.models.attention_kernels import attention_kernels
from draftgauge.models.device import free_bytes, upload
from draftgauge.models.lean import PREFILL_CHUNK, LeanModel, run_layers
from draftgauge.models.lean_attention import attend_over, masks_by_layer
from draftgauge.models.lean_weights import LeanWeights
from draftgauge.models.row_layout import Shape, attend_by_row, lay_out
from draftgauge.models.spec import check_context
from draftgauge.models.static_graphs import Run, graph_pool
from draftgauge.models.static_model import StaticModel


class StaticRows:
    """Sequences that a decoder of the lean families takes in side by side, with fixed shapes.

    Logits are those of :class:`~draftgauge.models.static_model.StaticModel` up to the rounding of differently ordered
    sums. On a GPU a pass whose shape comes again is captured as a CUDA graph; of ragged shapes, which are many and each
    keep memory for their logits, the first :attr:`most_ragged_graphs`, and the others are launched kernel by kernel.
    """

    most_ragged_graphs = 64

    def __init__(self, model: LeanModel, rows: int, capacity: int) -> None:
        """Share the weights of a model; its own cache is not touched.

        Args:
            model: on the lean or the static engine.
            rows: ``R``.
            capacity: most tokens of a sequence.

        Raises:
            ModelError: if the model takes fewer tokens, or the cache does not fit into memory.
        """
        self.spec = model.spec
        check_context(self.spec, capacity)
        check_caches_fit([(model, capacity)], rows)
        weights = model._weights
        shape = (len(weights.layers), rows, 2 * weights.key_heads, capacity, weights.head_dim)
        self.capacity = capacity
        self._weights = weights
        self._cache = torch.zeros(shape, dtype=self.spec.dtype, device=self.spec.device)
        self._cos, self._sin = model.rotary(capacity)
        self._lengths = [0] * rows
        self._passes: dict[Shape, RowsPass] = {}
        self._graphs: dict[Shape, Run] = {}
        self._pool = graph_pool(weights, self.spec.device)

    @property
    def recorded(self) -> int:
        """Passes that have been recorded as CUDA graphs."""
        return len(self._graphs)

    def length(self, row: int) -> int:
        """Tokens in a row."""
        return self._lengths[row]

    def truncate(self, row: int, length: int) -> None:
        """Keep the first ``length`` tokens of a row: what follows is overwritten later."""
        assert 0 <= length <= self._lengths[row], (length, self._lengths[row])
        self._lengths[row] = length

    @torch.inference_mode()
    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        """Empty a row and take ``tokens`` in, for their keys and values alone."""
        self._lengths[row] = 0
        with attention_kernels(self.spec.device):
            for chunk in upload(tokens, self.spec.device).split(PREFILL_CHUNK):
                if len(chunk):
                    self._prefill_chunk(row, chunk)

    @torch.inference_mode()
    def step(self, rows: Sequence[int], counts: Sequence[int], tokens: Tensor) -> Tensor:
        """Append tokens to several rows in one pass.

        Args:
            rows: increasing.
            counts: tokens of each, at least one.
            tokens: ``[T]`` int64 on the device, row by row.

        Returns:
            float32 ``[T, vocabulary]``: the logits after every token.

        Raises:
            ModelError: if a row would exceed the cache.
        """
        begins = [self._lengths[row] for row in rows]
        ends = [begin + count for begin, count in zip(begins, counts, strict=True)]
        longest = max(ends)
        if longest > self.capacity:
            raise ModelError(f"a row would hold {longest} tokens, and the cache has room for {self.capacity}")
        shape = Shape(rows[0], rows[-1] + 1 - rows[0], sum(counts), max(counts), self._bucket(longest))
        first = shape not in self._passes
        if first:
            self._passes[shape] = RowsPass(self._weights, (self._cache, self._cos, self._sin), shape)
        prepared = self._passes[shape]
        prepared.feed(tokens, lay_out(rows, begins, counts, shape))
        with attention_kernels(self.spec.device):
            logits = self._run(shape, prepared, first)
        for row, end in zip(rows, ends, strict=True):
            self._lengths[row] = end
        return logits.to(torch.float32, copy=True)  # a copy, as the next pass writes to the same memory

    def _run(self, shape: Shape, prepared: RowsPass, first: bool) -> Tensor:
        if first or self._pool is None:
            return prepared.run()
        if shape not in self._graphs:
            ragged = sum(not captured.full for captured in self._graphs)
            if not shape.full and ragged >= self.most_ragged_graphs:
                return prepared.run()
            self._graphs[shape] = self._pool.capture(prepared.run)
        return self._graphs[shape]()

    def _bucket(self, end: int) -> int:
        bucket = StaticModel.first_bucket
        while bucket < end:
            bucket *= 2
        return min(bucket, self.capacity)

    def _prefill_chunk(self, row: int, tokens: Tensor) -> None:
        begin = self._lengths[row]
        end = begin + len(tokens)
        if end > self.capacity:
            raise ModelError(f"a prompt of {end} tokens does not fit a cache of {self.capacity}")
        attend = attend_over(self._weights, self._cache[:, row], begin, end)
        run_layers(self._weights, tokens, self._cos[begin:end], self._sin[begin:end], attend)
        self._lengths[row] = end


class RowsPass:
    """``T`` tokens of several rows: what changes from pass to pass is in tensors, and no shape depends on it."""

    def __init__(self, weights: LeanWeights, where: tuple[Tensor, Tensor, Tensor], shape: Shape) -> None:
        """Prepare the inputs.

        Args:
            weights: of the decoder.
            where: the cache ``[layers, R, 2 KV, capacity, D]`` and the rotary tables, which do not move.
            shape: of the pass.
        """
        cache, self._cos, self._sin = where
        device = cache.device
        self._weights, self._shape, self._cache = weights, shape, cache
        self._seen = cache[:, shape.first : shape.first + shape.rows, :, : shape.bucket].unbind()
        self._tokens = torch.zeros(shape.tokens, dtype=torch.int64, device=device)
        self._owner, self._position, self._slot = torch.zeros(
            3, shape.tokens, dtype=torch.int64, device=device
        ).unbind()
        self._begins = torch.zeros(shape.rows, dtype=torch.int64, device=device)
        group = weights.query_heads // weights.key_heads
        self._steps = torch.arange(shape.widest, device=device).repeat_interleave(group)[:, None]  # [W G, 1]
        self._columns = torch.arange(shape.bucket, device=device)
        self._limits = torch.tensor([0.0, float("-inf")], dtype=cache.dtype, device=device).unbind()

    def feed(self, tokens: Tensor, places: list[int]) -> None:
        """Say which tokens the next run takes in, and where they belong, see :func:`lay_out`."""
        self._tokens.copy_(tokens)
        count, there = self._shape.tokens, upload(places, self._tokens.device)
        self._owner.copy_(there[:count])
        self._position.copy_(there[count : 2 * count])
        self._slot.copy_(there[2 * count : 3 * count])
        self._begins.copy_(there[3 * count :])

    def run(self) -> Tensor:
        """Take the tokens in; logits ``[T, V]`` in the model's dtype."""
        weights = self._weights
        cos, sin = self._cos.index_select(0, self._position), self._sin.index_select(0, self._position)
        positions = self._begins[:, None, None, None] + self._steps  # [B, 1, W G, 1]
        masks = masks_by_layer(weights, self._columns, positions, self._limits)  # [B, 1, W G, C]
        slot = None if self._shape.full else self._slot

        def attend(layer: int, qkv: Tensor) -> Tensor:
            self._cache[layer][self._owner, :, self._position] = qkv[:, weights.query_heads :]
            return attend_by_row(qkv[:, : weights.query_heads], self._seen[layer], masks[layer], slot, weights.mix)

        return weights.head(weights.norm(run_layers(weights, self._tokens, cos, sin, attend)))


def check_caches_fit(caches: Sequence[tuple[LeanModel, int]], rows: int) -> None:
    """Check that keys and values of ``rows`` sequences fit into the free memory, those of one device together.

    Args:
        caches: models, and most tokens of a sequence in each.
        rows: of each cache.

    Raises:
        ModelError: saying how much they need.
    """
    needed: defaultdict[torch.device, int] = defaultdict(int)
    for model, capacity in caches:
        weights, spec = model._weights, model.spec
        values = len(weights.layers) * rows * 2 * weights.key_heads * capacity * weights.head_dim
        needed[spec.device] += values * spec.dtype.itemsize
    longest = max(capacity for _, capacity in caches)
    for device, size in needed.items():
        free = free_bytes(device)
        if free is not None and size > free:
            raise ModelError(
                f"a batch of {rows} sequences of {longest} tokens needs {size / 2**30:.1f} GiB for its keys and "
                f"values, and {device} has {free / 2**30:.1f} GiB free: choose smaller batches or shorter texts"
            )
