"""The static engine: the lean engine whose short passes have fixed shapes, replayed as CUDA graphs on a GPU.

Launched one by one from Python, the operations of a small model's layer cost many times their kernels. Here the
position is a tensor on the device and attention sees a bucket of the cache behind a mask, so that one recording serves
all positions of the bucket. On a CPU the same passes run eagerly.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.errors import warn
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static_rows import FIRST_BUCKET, GraphPool, RowsPass, Run, Shape, bucket_of, graph_pool
from draftgauge.models.transformers_calls import attention_kernels

STATIC_TOKENS = 32  # a pass of more is a prefill and runs as the lean engine's


class StaticModel(LeanModel):
    """:class:`~draftgauge.models.base.CachedModel` with fixed shapes, for the families of the lean engine.

    A pass is captured when it comes for the second time with the same number of tokens in the same bucket. Models with
    experts, or with quantised linears other than bitsandbytes' of 4 bits, run eagerly; on a GPU a warning says so.
    """

    engine: ClassVar[str] = "static"
    first_bucket: int = FIRST_BUCKET

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._memory: tuple[object, ...] = ()  # what the passes read and write
        self._passes: dict[tuple[int, int], RowsPass] = {}  # by number of tokens and bucket
        self._graphs: dict[tuple[int, int], Run] = {}
        self._pool = graph_pool(self.spec.device, self._weights.eager)
        if self.spec.device.type == "cuda" and self._pool is None:
            warn(
                f"the static engine runs this {self.spec.family} model without CUDA graphs: {self._weights.eager}",
            )

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        if len(tokens) > STATIC_TOKENS:
            return super().forward(tokens, last_only)
        self._reserve(len(tokens))
        end = self._length + len(tokens)
        self._forget_moved(end)
        with attention_kernels(self.spec.device):
            rows = self._run(tokens, (len(tokens), bucket_of(end, self._capacity, self.first_bucket)))
        self._length = end
        # A copy, as the next pass writes to the same memory.
        return (rows[-1:] if last_only else rows).to(torch.float32, copy=True)

    @torch.inference_mode()
    def record(self, most: int, longest: int) -> None:
        """Capture the passes over up to ``most`` tokens in texts of up to ``longest``, before something is timed.

        The cache is empty afterwards.
        """
        if self._pool is None:
            return
        ends = [self.first_bucket]
        while ends[-1] < longest:
            ends.append(2 * ends[-1])
        ends = sorted({min(end, self.spec.context) for end in ends})
        self.reset()
        self._reserve(ends[-1])
        if self.hidden is not None:
            self.hidden.reserve(0, ends[-1])
        for end in ends:
            for count in range(1, min(most, STATIC_TOKENS, end) + 1):
                tokens = torch.zeros(count, dtype=torch.int64, device=self.spec.device)
                for _ in range(2):  # recorded when it comes again
                    self._length = end - count  # whatever the cache holds
                    self.forward(tokens)
        self.reset()

    def _run(self, tokens: Tensor, key: tuple[int, int]) -> Tensor:
        """Logits ``[k, V]`` of the pass over these tokens, valid until the next one."""
        count, bucket = key
        first = key not in self._passes
        if first:
            where = self._cache[:, None], self._cos, self._sin
            self._passes[key] = RowsPass(self._weights, where, Shape(0, 1, count, count, bucket))
            if self.hidden is not None:
                self._passes[key].keep_states(self.hidden.reserve(0, 0), self.hidden.layers)
        static = self._passes[key]
        static.feed(tokens, [0], [self._length], [count])
        if first or self._pool is None:
            return static.run()
        if key not in self._graphs:
            self._graphs[key] = self._pool.capture(static.run)
        return self._graphs[key]()

    def _grow(self, capacity: int) -> None:
        if self._capacity:  # the passes would keep a cache in memory that was outgrown
            self._forget()
        super()._grow(capacity)

    def _forget_moved(self, end: int) -> None:
        """Forget the passes if what they read and write has moved: a cache that grew, other taps."""
        states = None if self.hidden is None else self.hidden.reserve(self._length, end)
        layers = None if self.hidden is None else self.hidden.layers
        memory = (self._cache, self._cos, states, layers)
        if len(self._memory) != len(memory) or any(a is not b for a, b in zip(memory, self._memory, strict=True)):
            self._forget()
            self._memory = memory

    def _forget(self) -> None:
        if self._graphs:
            self._graphs.clear()
            self._pool = GraphPool(self.spec.device)
        self._passes.clear()
        self._memory = ()
