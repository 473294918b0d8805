"""Passes of small drafters as CUDA graphs: launched from Python, their operations cost many times what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.base import Drafter, RunsModel
from draftgauge.models.base import CachedModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.engines.static_rows import graph_pool

Result = TypeVar("Result")


@runtime_checkable
class Records(Protocol):
    """A drafter that records what it runs."""

    def record_passes(self, most: int, longest: int) -> None:
        """Record what drafts of up to ``most`` tokens run in texts of up to ``longest``."""


def record_passes(target: CachedModel, drafter: Drafter | None, gamma_max: int, longest: int) -> None:
    """Record on a GPU what steps with drafts of up to ``gamma_max`` tokens run, before something is timed.

    The caches are empty afterwards.
    """
    for model in (target, drafter.model if isinstance(drafter, RunsModel) else None):
        if isinstance(model, StaticModel):
            model.record(gamma_max + 1, longest)
    if isinstance(drafter, Records):
        drafter.record_passes(gamma_max, longest)


class Recorded(Generic[Result]):
    """A function that is recorded as a CUDA graph for each set of shapes, when it comes again; on a CPU it just runs.

    Arguments and results are tensors, what does not change, and tuples of these. The function neither waits for the
    device nor keeps what it is given. Of what earlier calls returned, only what is given to a call survives it.
    """

    def __init__(self, run: Callable[..., Result], cache: AnchorCache) -> None:
        """``cache`` is what the function reads and writes beside its arguments."""
        self.run = run
        self._cache = cache
        self._forget()

    def _forget(self) -> None:
        self._capacity = self._cache.capacity
        self._pool = graph_pool(self._cache.device)
        self._seen: set[tuple[Any, ...]] = set()
        self._known: dict[tuple[Any, ...], tuple[list[Any], Callable[[], Result]]] = {}
        self._kept: dict[int, Tensor] = {}  # what recordings read and return, which stays where it is

    def __call__(self, *given: Any) -> Result:
        if self._pool is None or torch.is_autocast_enabled(self._cache.device.type):  # whose copies of weights move
            return self.run(*given)
        if self._capacity != self._cache.capacity:
            self._forget()
        leaves, structure = tree_flatten(given)
        key = tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._seen:
            self._seen.add(key)
            return self.run(*given)
        recorded = key in self._known
        if not recorded:
            read = [
                leaf.clone() if isinstance(leaf, Tensor) and id(leaf) not in self._kept else leaf for leaf in leaves
            ]
            arguments = tree_unflatten(read, structure)
            self._known[key] = read, self._pool.capture(lambda: self.run(*arguments))
        read, replay = self._known[key]
        for own, leaf in zip(read, leaves, strict=True):
            if isinstance(own, Tensor) and own is not leaf:
                own.copy_(leaf)
        result = replay()
        if not recorded:
            self._kept |= {id(leaf): leaf for leaf in (*read, *tree_flatten(result)[0]) if isinstance(leaf, Tensor)}
        return result
