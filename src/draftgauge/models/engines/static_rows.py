"""Passes of fixed shapes over one or more sequences of a lean decoder, their CUDA graphs, and a cache of many
sequences.

A pass takes ``T`` tokens, possibly another number of each row. All go through the linears side by side; for attention,
queries are laid out by row, padded to the longest. Letters in shapes as in :mod:`draftgauge.models.engines.lean`;
``R`` rows of the cache, ``B`` rows that a pass spans, ``W`` most tokens of one of them, ``C`` places of the cache that
it sees, its *bucket*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from draftgauge.core.errors import ModelError, warn
from draftgauge.models.device import free_bytes, upload
from draftgauge.models.engines.lean import PREFILL_CHUNK, LeanModel, run_layers
from draftgauge.models.engines.lean_attention import attend_over, masks_by_layer
from draftgauge.models.engines.lean_weights import LeanWeights, Mix
from draftgauge.models.spec import check_context
from draftgauge.models.transformers_calls import attention_kernels

FIRST_BUCKET = 256  # places that the first passes see; each next bucket has twice as many
MOST_PASSES = 1024  # shapes that are kept prepared


class Shape(NamedTuple):
    """What a pass must be captured anew for: the first row it spans, ``B``, ``T``, ``W`` and ``C``."""

    first: int
    rows: int
    tokens: int
    widest: int
    bucket: int

    @property
    def full(self) -> bool:
        return self.tokens == self.rows * self.widest


class RowsPass:
    """``T`` tokens of one or more rows at any positions."""

    def __init__(self, weights: LeanWeights, where: tuple[Tensor, Tensor, Tensor], shape: Shape) -> None:
        """``where``: the cache ``[layers, R, 2 KV, capacity, D]`` and the rotary tables; they must not move."""
        self._weights, self._shape, (self._cache, self._cos, self._sin) = weights, shape, where
        device, dtype = self._cache.device, self._cache.dtype
        self._seen = self._cache[:, shape.first : shape.first + shape.rows, :, : shape.bucket].unbind()
        self._tokens = torch.zeros(shape.tokens, dtype=torch.int64, device=device)
        self._places = torch.zeros(3 * shape.tokens + shape.rows, dtype=torch.int64, device=device)
        group = weights.query_heads // weights.key_heads
        self._steps = torch.arange(shape.widest, device=device).repeat_interleave(group)[:, None]  # [W G, 1]
        self._columns = torch.arange(shape.bucket, device=device)
        self._limits = torch.tensor([0.0, float("-inf")], dtype=dtype, device=device).unbind()
        self._states: Tensor | None = None
        self._state_layers: Sequence[int] = ()

    def keep_states(self, states: Tensor, layers: Sequence[int]) -> None:
        self._states, self._state_layers = states, layers

    def feed(self, tokens: Tensor, rows: Sequence[int], begins: Sequence[int], counts: Sequence[int]) -> None:
        """Say which tokens ``[T]`` the next run takes in: ``counts`` of each row, after ``begins`` ones."""
        shape, starts = self._shape, [0] * self._shape.rows
        owner: list[int] = []
        position: list[int] = []
        slot: list[int] = []
        for row, begin, count in zip(rows, begins, counts, strict=True):
            index = row - shape.first
            starts[index] = begin
            owner += [row] * count
            position += range(begin, begin + count)
            slot += range(index * shape.widest, index * shape.widest + count)
        self._tokens.copy_(tokens)
        self._places.copy_(upload([*owner, *position, *slot, *starts], self._places.device))

    def run(self) -> Tensor:
        """Take the tokens in; logits ``[T, V]`` in the model's dtype."""
        weights, count = self._weights, self._shape.tokens
        owner, position, slot, starts = self._places.split((count, count, count, self._shape.rows))
        cos, sin = self._cos.index_select(0, position), self._sin.index_select(0, position)
        positions = starts[:, None, None, None] + self._steps  # [B, 1, W G, 1]
        masks = masks_by_layer(weights, self._columns, positions, self._limits)  # [B, 1, W G, C]
        laid = None if self._shape.full else slot

        def attend(layer: int, qkv: Tensor) -> Tensor:
            self._cache[layer][owner, :, position] = qkv[:, weights.query_heads :]
            return _attend_by_row(qkv[:, : weights.query_heads], self._seen[layer], masks[layer], laid, weights.mix)

        def keep(layer: int, x: Tensor) -> None:
            if layer in self._state_layers:
                assert self._states is not None
                self._states[:, self._state_layers.index(layer)].index_copy_(0, position, x)

        hidden = run_layers(weights, self._tokens, cos, sin, attend, keep if self._state_layers else None)
        return weights.head(weights.norm(hidden))


def _attend_by_row(queries: Tensor, seen: Tensor, mask: Tensor, slot: Tensor | None, mix: Mix) -> Tensor:
    """Attention ``[T, H D]`` of queries ``[T, H, D]`` over rows ``[B, 2 KV, C, D]`` that already hold the tokens.

    Args:
        mask: additive, ``[B, 1, W G, C]``, by token, then query head of a group.
        slot: ``[T]`` place of each token in ``[B, W]``; None where every row has ``W`` tokens, in order.
        mix: of the decoder.
    """
    (_, heads, dim), (rows, both) = queries.shape, seen.shape[:2]
    kv = both // 2
    group, widest = heads // kv, mask.shape[2] * kv // heads
    laid = queries
    if slot is not None:
        laid = queries.new_zeros(rows * widest, heads, dim).index_copy_(0, slot, queries)
    packed = laid.reshape(rows, widest, kv, group, dim).transpose(1, 2).reshape(rows, kv, widest * group, dim)
    mixed = mix(packed, seen[:, :kv], seen[:, kv:], attn_mask=mask)
    mixed = mixed.view(rows, kv, widest, group, dim).transpose(1, 2).reshape(rows * widest, heads * dim)
    return mixed if slot is None else mixed.index_select(0, slot)


class StaticRows:
    """Sequences that a decoder of the lean families takes in side by side, each in a row of one cache.

    Logits are those of :class:`~draftgauge.models.engines.lean.LeanModel` up to the rounding of differently ordered
    sums. On a GPU a pass whose shape comes again is captured as a CUDA graph. Ragged shapes are many and each keep
    memory for their logits: the first :attr:`most_ragged_graphs` are captured, of others four times as many. What is
    left is launched kernel by kernel.
    """

    most_ragged_graphs = 64
    first_bucket = FIRST_BUCKET

    def __init__(self, model: LeanModel, rows: int, capacity: int) -> None:
        """Share the weights of a model, whose own cache is not touched; room for ``rows`` of ``capacity`` tokens."""
        self.spec = model.spec
        self._model = model
        self._weights = model._weights
        self._lengths: list[int] = []
        self._cache = torch.empty(len(self._weights.layers), 0, 0, 0, 0)
        self.rows = self.capacity = 0
        self.reserve(rows, capacity)

    def reserve(self, rows: int, capacity: int) -> None:
        """Make room for more rows or longer ones; what they hold stays."""
        check_context(self.spec, capacity)
        check_caches_fit([(self._model, capacity)], rows)
        weights, before = self._weights, self._cache
        # Zeros, as masked keys that were never written must at least be numbers.
        self._cache = torch.zeros(
            (len(weights.layers), rows, 2 * weights.key_heads, capacity, weights.head_dim),
            dtype=self.spec.dtype,
            device=self.spec.device,
        )
        if self.rows:
            self._cache[:, : self.rows, :, : self.capacity] = before
        self._lengths += [0] * (rows - self.rows)
        self.rows, self.capacity = rows, capacity
        self._cos, self._sin = self._model.rotary(capacity)
        self._passes: dict[Shape, RowsPass] = {}
        self._graphs: dict[Shape, Run] = {}
        self._pool = graph_pool(self.spec.device, weights.eager)

    @property
    def recorded(self) -> int:
        return len(self._graphs)

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
                run_layers(self._weights, chunk, self._cos[begin:end], self._sin[begin:end], attend)
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
        first = shape not in self._passes
        if first:
            if len(self._passes) >= MOST_PASSES:  # a server sees ever new ones
                self._passes = {kept: self._passes[kept] for kept in self._graphs}
            self._passes[shape] = RowsPass(self._weights, (self._cache, self._cos, self._sin), shape)
        self._passes[shape].feed(tokens, rows, begins, counts)
        with attention_kernels(self.spec.device):
            logits = self._run(shape, self._passes[shape], first)
        for row, end in zip(rows, ends, strict=True):
            self._lengths[row] = end
        return logits.to(torch.float32, copy=True)  # a copy, as the next pass writes to the same memory

    def _run(self, shape: Shape, prepared: RowsPass, first: bool) -> Tensor:
        if first or self._pool is None:
            return prepared.run()
        if shape not in self._graphs:
            alike = sum(captured.full == shape.full for captured in self._graphs)
            if alike >= self.most_ragged_graphs * (4 if shape.full else 1):
                return prepared.run()
            self._graphs[shape] = self._pool.capture(prepared.run)
        return self._graphs[shape]()

    def _check_room(self, length: int) -> None:
        if length > self.capacity:
            raise ModelError(f"a row would hold {length} tokens, and the cache has room for {self.capacity}")


def bucket_of(end: int, capacity: int, first: int) -> int:
    bucket = first
    while bucket < end:
        bucket *= 2
    return min(bucket, capacity)


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


Run = Callable[[], Tensor]
Result = TypeVar("Result")


class GraphPool:
    """Graphs on one device that share memory: no two of them run at once, and what one returns is read right away."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # the default one of torch.cuda.graph is of one device for all
        self._memory = torch.cuda.graph_pool_handle()
        self._records = True

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Record what ``run``, which must have run before, launches; the function that comes back launches it again.

        Where it cannot be recorded it comes back as it is, to be launched kernel by kernel, and so does all that
        follows.
        """
        if not self._records:
            return run
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, self._memory, self._stream, capture_error_mode="thread_local"),
            ):
                output = run()
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # where a recording that failed may have left another one
            cause = error.__context__ or error  # ending it fails too, and says less
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            self._records = False
            why = str(cause).split("\n", 1)[0]
            warn(f"passes are launched kernel by kernel, as none could be recorded: {why}")
            return run

        def replay() -> Result:
            with torch.cuda.device(self._device):
                graph.replay()
            return output

        return replay


def graph_pool(device: torch.device, eager: str | None = None) -> GraphPool | None:
    """None where passes are launched kernel by kernel: on a CPU, or for the reason that is given."""
    return GraphPool(device) if device.type == "cuda" and eager is None else None
