"""The static engine: passes of fixed shapes over one or more sequences of a lean decoder, replayed as CUDA graphs.

A position is a tensor on the device and attention sees a *bucket* of the cache behind a mask. One recording then serves
all positions of the bucket. On a CPU the same passes run eagerly. A pass takes ``T`` tokens, possibly another
number of each row. All go through the linears side by side; for attention, queries are laid out by row, padded to the
longest.

Letters in shapes as in :mod:`draftgauge.models.engines.lean`. A cache has ``R`` rows; a pass spans ``B`` of them, takes
at most ``W`` tokens of one, and sees ``C`` places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError, warn
from draftgauge.models.base import grown
from draftgauge.models.device import free_bytes, upload
from draftgauge.models.engines.lean import PREFILL_CHUNK, LeanModel, attend_over, masks_by_layer, run_layers
from draftgauge.models.engines.lean_weights import LeanWeights
from draftgauge.models.graphs import Recorded, graph_pool
from draftgauge.models.spec import attention_kernels, check_context

FIRST_BUCKET = 256  # places that the first passes see; each next bucket has twice as many
STATIC_TOKENS = 32  # of one sequence: a pass of more is a prefill and runs as the lean engine's


class Shape(NamedTuple):
    """What a pass must be recorded anew for: the first row it spans, ``B``, ``T``, ``W`` and ``C``."""

    first: int
    rows: int
    tokens: int
    widest: int
    bucket: int

    @property
    def full(self) -> bool:
        return self.tokens == self.rows * self.widest


class Memory:
    """What passes read and write beside their tokens; it must not move while they are recorded."""

    def __init__(
        self, cache: Tensor, tables: tuple[Tensor, Tensor], states: Tensor | None = None, layers: Sequence[int] = ()
    ) -> None:
        """A cache ``[layers, R, 2 KV, capacity, D]``, rotary tables, and a store of some layers' hidden states."""
        self.cache, self.tables, self.states, self.layers = cache, tables, states, layers
        self.columns = torch.arange(cache.shape[3], device=cache.device)
        self.limits = torch.tensor([0.0, float("-inf")], dtype=cache.dtype, device=cache.device).unbind()


def lay_out(shape: Shape, rows: Sequence[int], begins: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Where a pass's tokens belong, ``counts`` of each row after ``begins`` ones.

    The row of each, its position and its place in ``[B, W]``; then, by row of the span, how many tokens are before.
    """
    owner: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    starts = [0] * shape.rows
    for row, begin, count in zip(rows, begins, counts, strict=True):
        index = row - shape.first
        starts[index] = begin
        owner += [row] * count
        position += range(begin, begin + count)
        slot += range(index * shape.widest, index * shape.widest + count)
    return [*owner, *position, *slot, *starts]


def run_pass(weights: LeanWeights, memory: Memory, shape: Shape, tokens: Tensor, places: Tensor) -> Tensor:
    """Take tokens ``[T]`` in at places as of :func:`lay_out`; logits ``[T, V]`` in the model's dtype."""
    count, rows, widest = shape.tokens, shape.rows, shape.widest
    heads, kv, dim = weights.query_heads, weights.key_heads, weights.head_dim
    group = heads // kv
    owner, position, slot, starts = places.split((count, count, count, rows))
    cos, sin = (table.index_select(0, position) for table in memory.tables)
    of_slots = (starts[:, None, None] + memory.columns[:widest, None]).expand(-1, -1, group)
    positions = of_slots.reshape(rows, 1, widest * group, 1)
    masks = masks_by_layer(weights, memory.columns[: shape.bucket], positions, memory.limits)  # [B, 1, W G, C]
    seen = memory.cache[:, shape.first : shape.first + rows, :, : shape.bucket]

    def attend(layer: int, qkv: Tensor) -> Tensor:
        memory.cache[layer][owner, :, position] = qkv[:, heads:]
        laid, cached = qkv[:, :heads], seen[layer]
        if not shape.full:
            laid = laid.new_zeros(rows * widest, heads, dim).index_copy_(0, slot, laid)
        packed = laid.reshape(rows, widest, kv, group, dim).transpose(1, 2).reshape(rows, kv, widest * group, dim)
        mixed = weights.mix(packed, cached[:, :kv], cached[:, kv:], attn_mask=masks[layer])
        mixed = mixed.view(rows, kv, widest, group, dim).transpose(1, 2).reshape(rows * widest, heads * dim)
        return mixed if shape.full else mixed.index_select(0, slot)

    def keep(layer: int, x: Tensor) -> None:
        if memory.states is not None and layer in memory.layers:
            memory.states[:, memory.layers.index(layer)].index_copy_(0, position, x)

    hidden = run_layers(weights, tokens, cos, sin, attend, keep)
    return weights.head(weights.norm(hidden))


def bucket_of(end: int, capacity: int, first: int) -> int:
    bucket = first
    while bucket < end:
        bucket *= 2
    return min(bucket, capacity)


class StaticModel(LeanModel):
    """:class:`~draftgauge.models.base.CachedModel` with fixed shapes, for the families of the lean engine.

    A pass is recorded when it comes for the second time with the same number of tokens in the same bucket. Models with
    experts, or with quantised linears other than bitsandbytes' of 4 bits, run eagerly; on a GPU a warning says so.
    """

    engine: ClassVar[str] = "static"
    first_bucket: int = FIRST_BUCKET
    passes: Recorded[Tensor] | None = None
    _over: tuple[Tensor | None, ...] = ()  # what they read and write

    def __init__(self, model: PreTrainedModel, owned: bool = False, dtype: torch.dtype | None = None) -> None:
        super().__init__(model, owned, dtype)
        if self.spec.device.type == "cuda" and self._weights.eager is not None:
            warn(f"the static engine runs this {self.spec.family} model without CUDA graphs: {self._weights.eager}")

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        count = len(tokens)
        if count > STATIC_TOKENS:
            return super().forward(tokens, last_only)
        self._reserve(count)
        begin, end = self._length, self._length + count
        shape = Shape(0, 1, count, count, bucket_of(end, self._capacity, self.first_bucket))
        places = upload(lay_out(shape, [0], [begin], [count]), self.spec.device)
        with attention_kernels(self.spec.device):
            rows = self._passes_to(end)(shape, tokens, places)
        self._length = end
        # A copy, as the next pass writes to the same memory.
        return (rows[-1:] if last_only else rows).to(torch.float32, copy=True)

    @torch.inference_mode()
    def record(self, most: int, longest: int) -> None:
        """Record the passes over up to ``most`` tokens in texts of up to ``longest``, before something is timed.

        The cache is empty afterwards.
        """
        if self.spec.device.type != "cuda" or self._weights.eager is not None:
            return
        ends = [self.first_bucket]
        while ends[-1] < longest:
            ends.append(2 * ends[-1])
        ends = sorted({min(end, self.spec.context) for end in ends})
        self.reset()
        self._reserve(ends[-1])
        if self.hidden is not None:
            self.hidden.reserve(ends[-1])
        for end in ends:
            for count in range(1, min(most, STATIC_TOKENS, end) + 1):
                tokens = torch.zeros(count, dtype=torch.int64, device=self.spec.device)
                for _ in range(2):  # recorded when it comes again
                    self._length = end - count  # whatever the cache holds
                    self.forward(tokens)
        self.reset()

    def _passes_to(self, end: int) -> Recorded[Tensor]:
        """Passes up to a length; new ones where what they read and write has moved: a cache that grew, other taps."""
        states, layers = (None, ()) if self.hidden is None else (self.hidden.reserve(end), self.hidden.layers)
        over = (self._cache, self._cos, states)
        if self.passes is None or any(a is not b for a, b in zip(over, self._over, strict=True)):
            self._over, memory = over, Memory(self._cache[:, None], (self._cos, self._sin), states, layers)
            pool = graph_pool(self.spec.device, self._weights.eager)
            self.passes = Recorded(partial(run_pass, self._weights, memory), pool)
        return self.passes

    def _grow(self, end: int) -> None:
        self.passes, self._over = None, ()  # they would keep a cache in memory that was outgrown
        super()._grow(end)


class StaticRows:
    """Sequences that a decoder of the lean families takes in side by side, each in a row of one cache.

    Logits are those of :class:`~draftgauge.models.engines.lean.LeanModel` up to the rounding of differently ordered
    sums. On a GPU a pass whose shape comes again is recorded as a CUDA graph. Ragged shapes are many and each keep
    memory for their logits: the first :attr:`most_ragged_graphs` are recorded, of others four times as many. What is
    left is launched kernel by kernel.
    """

    most_ragged_graphs = 64
    first_bucket = FIRST_BUCKET

    def __init__(self, model: LeanModel, rows: int, capacity: int) -> None:
        """Share the weights of a model, whose own cache is not touched; room for ``rows`` of ``capacity`` tokens."""
        self.spec = model.spec
        self._model, self._weights = model, model._weights
        self._lengths: list[int] = []
        self._cache = model._cache.new_empty(len(self._weights.layers), 0, 2 * self._weights.key_heads, 0, 0)
        self.rows = self.capacity = 0
        self.reserve(rows, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for more rows or longer ones; what they hold stays."""
        check_context(self.spec, capacity)
        check_caches_fit([(self._model, capacity)], rows)
        layers, _, heads, *_ = self._cache.shape
        self._cache = grown(self._cache, layers, rows, heads, capacity, self._weights.head_dim)
        self._lengths += [0] * (rows - self.rows)
        self.rows, self.capacity = rows, capacity
        self._tables = self._model.rotary(capacity)
        run = partial(run_pass, self._weights, Memory(self._cache, self._tables))
        pool, most = graph_pool(self.spec.device, self._weights.eager), self.most_ragged_graphs
        self._passes = {full: Recorded(run, pool, most=most * (4 if full else 1)) for full in (True, False)}

    @property
    def recorded(self) -> int:
        return sum(map(len, self._passes.values()))

    def length(self, row: int) -> int:
        return self._lengths[row]

    def truncate(self, row: int, length: int) -> None:
        assert 0 <= length <= self._lengths[row], (length, self._lengths[row])
        self._lengths[row] = length

    def prefill(self, row: int, tokens: Sequence[int]) -> None:
        self._lengths[row] = 0
        self.append(row, tokens)

    @torch.inference_mode()
    def append(self, row: int, tokens: Sequence[int]) -> None:
        """Take more tokens into a row, for their keys and values alone."""
        if not tokens:
            return
        self._check_room(self._lengths[row] + len(tokens))
        with attention_kernels(self.spec.device):
            for chunk in upload(tokens, self.spec.device).split(PREFILL_CHUNK):
                begin, end = self._lengths[row], self._lengths[row] + len(chunk)
                attend = attend_over(self._weights, self._cache[:, row], begin, end)
                cos, sin = self._tables
                run_layers(self._weights, chunk, cos[begin:end], sin[begin:end], attend)
                self._lengths[row] = end

    @torch.inference_mode()
    def step(self, rows: Sequence[int], counts: Sequence[int], tokens: Tensor) -> Tensor:
        """Append tokens ``[T]``, row by row, to increasing ``rows``, ``counts`` to each, in one pass.

        Returns:
            float32 ``[T, vocabulary]``: the logits after every token.
        """
        begins = [self._lengths[row] for row in rows]
        ends = [begin + count for begin, count in zip(begins, counts, strict=True)]
        self._check_room(max(ends))
        bucket = bucket_of(max(ends), self.capacity, self.first_bucket)
        shape = Shape(rows[0], rows[-1] + 1 - rows[0], sum(counts), max(counts), bucket)
        places = upload(lay_out(shape, rows, begins, counts), self.spec.device)
        with attention_kernels(self.spec.device):
            logits = self._passes[shape.full](shape, tokens, places)
        for row, end in zip(rows, ends, strict=True):
            self._lengths[row] = end
        return logits.to(torch.float32, copy=True)  # a copy, as the next pass writes to the same memory

    def _check_room(self, length: int) -> None:
        if length > self.capacity:
            raise ModelError(f"a row would hold {length} tokens, and the cache has room for {self.capacity}")


def check_caches_fit(caches: Sequence[tuple[LeanModel, int]], rows: int) -> None:
    """Refuse caches of ``rows`` sequences, each of a model and a length, that exceed their devices' free memory."""
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
