"""Passes of small drafters as CUDA graphs: launched from Python, their operations cost many times what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from draftgauge.drafters.anchors import AnchorCache
from draftgauge.models.rows import graph_pool

Result = TypeVar("Result")


class Recorded(Generic[Result]):
    """A function that is recorded as a CUDA graph for each set of shapes, when it comes again; on a CPU it just runs.

    Arguments and results are tensors, what does not change, and tuples of these. The function neither waits for the
    device nor keeps what it is given. A result is valid until the next one of the same shapes.
    """

    def __init__(self, run: Callable[..., Result], cache: AnchorCache) -> None:
        """``cache`` is what the function reads and writes beside its arguments."""
        self.run = run
        self._cache = cache
        self._memory: list[Tensor] = []
        self._forget()

    def _forget(self) -> None:
        self._pool = graph_pool(self._cache.device)
        self._seen: set[tuple[Any, ...]] = set()
        self._known: dict[tuple[Any, ...], tuple[list[Tensor], Callable[[], Result]]] = {}

    def __call__(self, *given: Any) -> Result:
        if self._pool is None:
            return self.run(*given)
        memory = self._cache.memory
        if len(memory) != len(self._memory) or any(a is not b for a, b in zip(memory, self._memory, strict=True)):
            self._forget()  # the cache has grown
            self._memory = memory
        leaves, structure = tree_flatten(given)
        key = tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._seen:
            self._seen.add(key)
            return self.run(*given)
        if key not in self._known:
            kept = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            arguments = tree_unflatten(kept, structure)
            own = [leaf for leaf in kept if isinstance(leaf, Tensor)]
            self._known[key] = own, self._pool.capture(lambda: self.run(*arguments))
        inputs, replay = self._known[key]
        torch._foreach_copy_(inputs, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        return replay()
