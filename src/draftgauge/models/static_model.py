"""The static engine: the lean engine whose short passes have fixed shapes, replayed as CUDA graphs on a GPU.

A pass of a compiled engine costs the time of its kernels; launched one by one from Python, the fifteen operations of a
layer cost many times that for a small model. Here the position is a tensor on the device, keys are written by index,
and attention sees a bucket of the cache behind a mask, so that one recording serves all positions of the bucket. On a
CPU the same passes run eagerly.
"""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.models.attention_kernels import attention_kernels
from draftgauge.models.lean import LeanModel
from draftgauge.models.static_graphs import GraphPool, Run, graph_pool
from draftgauge.models.static_pass import Places, StaticPass

STATIC_TOKENS = 32  # a pass of more is a prefill and runs as the lean engine's


class StaticModel(LeanModel):
    """:class:`~draftgauge.models.base.CachedModel` with fixed shapes, for the families of the lean engine.

    A pass is captured when it comes for the second time with the same number of tokens in the same bucket; all
    recordings share one pool of memory. Quantised linears and mixtures of experts run code of their own, which need not
    be fit to be recorded: models that have some run eagerly, and on a GPU that is said in a warning.
    """

    engine: ClassVar[str] = "static"
    fixed_shapes: ClassVar[bool] = True
    first_bucket: int = 256  # places of the cache that the first passes see; each next bucket has twice as many

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._places: Places | None = None
        self._passes: dict[tuple[int, int], StaticPass] = {}  # by number of tokens and bucket
        self._graphs: dict[tuple[int, int], Run] = {}
        self._pool = graph_pool(self._weights, self.spec.device)
        if self.spec.device.type == "cuda" and self._pool is None:
            warnings.warn(
                f"the static engine runs this {self.spec.family} model without CUDA graphs: {self._weights.eager}",
                stacklevel=3,
            )

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens ``[k]`` and return float32 logits ``[k, vocabulary]``, or of the last token only."""
        if len(tokens) > STATIC_TOKENS:
            return super().forward(tokens, last_only)
        self._reserve(len(tokens))
        end = self._length + len(tokens)
        self._settle(end)
        with attention_kernels(self.spec.device):
            rows = self._run(tokens, end)
        self._length = end
        # A copy, as the next pass writes to the same memory.
        return (rows[-1:] if last_only else rows).to(torch.float32, copy=True)

    @torch.inference_mode()
    def record(self, most: int, longest: int) -> None:
        """Record the passes over up to ``most`` tokens in texts of up to ``longest``, lest one is recorded while
        something is timed; nothing happens where passes are not recorded. The cache is empty afterwards.
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

    def _grow(self, capacity: int) -> None:
        if self._capacity:  # the passes would keep a cache in memory that was outgrown
            self._forget(None)
        super()._grow(capacity)

    def _run(self, tokens: Tensor, end: int) -> Tensor:
        """Logits ``[k, V]`` of the pass that ends at ``end`` tokens, valid until the next one."""
        key = (len(tokens), self._bucket(end))
        first = key not in self._passes
        if first:
            assert self._places is not None
            self._passes[key] = StaticPass(self._weights, self._places, *key)
        static = self._passes[key]
        static.feed(tokens, self._length)
        if first or self._pool is None:
            return static.run()
        if key not in self._graphs:
            self._graphs[key] = self._pool.capture(static.run)
        return self._graphs[key]()

    def _bucket(self, end: int) -> int:
        bucket = self.first_bucket
        while bucket < end:
            bucket *= 2
        return min(bucket, self._capacity)

    def _settle(self, end: int) -> None:
        """Forget the passes if what they read and write has moved: a cache that grew, other taps."""
        states = None if self.hidden is None else self.hidden.reserve(self._length, end)
        layers = () if self.hidden is None else self.hidden.layers
        places = Places(self._cache, self._cos, self._sin, states, layers)
        if not places.same_as(self._places):
            self._forget(places)

    def _forget(self, places: Places | None) -> None:
        if self._graphs:
            self._graphs.clear()
            self._pool = GraphPool(self.spec.device)
        self._passes.clear()
        self._places = places
