"""CUDA graphs: what runs is recorded when it comes again, and launched as one from then on.

Launched from Python, the operations of a small model cost many times what they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from draftgauge.core.errors import warn

Result = TypeVar("Result")
MOST_SEEN = 1024  # sets of shapes that are remembered: a server sees ever new ones


class Recorded(Generic[Result]):
    """A function that is recorded as a CUDA graph for each set of shapes, when it comes again.

    Arguments and results are tensors, what does not change, and tuples of these. The function must not synchronise or
    keep its arguments. A returned tensor is overwritten by the next call unless it is passed to it.
    """

    def __init__(
        self,
        run: Callable[..., Result],
        pool: GraphPool | None,
        memory: Callable[[], object] = lambda: None,
        most: int | None = None,
    ) -> None:
        """Record in a pool; without one the function just runs.

        Args:
            memory: names what the function reads and writes beside its arguments: recordings end when it changes.
            most: graphs at most; None for all that come again.
        """
        self.run = run
        self._pool, self._memory, self._most = pool, memory, most
        self._forget()

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        return True  # before anything is recorded too: `run or ...` would leave it out for good

    def _forget(self) -> None:
        self._named = self._memory()
        self._seen: set[tuple[Any, ...]] = set()
        self._known: dict[tuple[Any, ...], tuple[list[Any], Callable[[], Result]]] = {}
        self._kept: dict[int, Tensor] = {}  # what recordings read and return, which stays where it is

    def __call__(self, *given: Any) -> Result:
        # Under autocast copies of weights move.
        if self._pool is None or torch.is_autocast_enabled(self._pool.device.type):
            return self.run(*given)
        if self._named != self._memory():
            self._pool = self._pool.anew()
            self._forget()
        leaves = list(_leaves(given))
        key = tuple(leaf.shape if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key in self._known:
            read, replay = self._known[key]
            for own, leaf in zip(read, leaves, strict=True):
                if isinstance(own, Tensor) and own is not leaf:
                    own.copy_(leaf)
            return replay()
        if key not in self._seen or (self._most is not None and len(self._known) >= self._most):
            if len(self._seen) >= MOST_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return self.run(*given)
        read = [leaf.clone() if isinstance(leaf, Tensor) and id(leaf) not in self._kept else leaf for leaf in leaves]
        arguments = _rebuilt(given, iter(read))
        replay = self._pool.capture(lambda: self.run(*arguments))
        self._known[key] = read, replay
        result = replay()
        self._kept |= {id(leaf): leaf for leaf in (*read, *_leaves(result)) if isinstance(leaf, Tensor)}
        return result


def _leaves(value: Any) -> Iterator[Any]:
    if not isinstance(value, tuple):
        yield value
        return
    for part in value:
        yield from _leaves(part)


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """A value with other leaves."""
    if not isinstance(value, tuple):
        return next(leaves)
    parts = [_rebuilt(part, leaves) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


class GraphPool:
    """Graphs on one device that share memory: no two of them run at once, and what one returns is read right away."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # the default one of torch.cuda.graph is of one device for all
        self._memory = torch.cuda.graph_pool_handle()
        self._records = True

    def anew(self) -> GraphPool:
        """One that shares no memory with this one, which is freed with its graphs."""
        return GraphPool(self.device)

    def capture(self, run: Callable[[], Result]) -> Callable[[], Result]:
        """Record what ``run``, which must have run before, launches; the function that comes back launches it again.

        Where it cannot be recorded it comes back as it is, to be launched kernel by kernel, and so does all that
        follows.
        """
        if not self._records:
            return run
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        try:
            with (
                torch.cuda.device(self.device),
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
            with torch.cuda.device(self.device):
                graph.replay()
            return output

        return replay


def graph_pool(device: torch.device, eager: str | None = None) -> GraphPool | None:
    """None where passes are launched kernel by kernel: on a CPU, or for the reason that is given."""
    return GraphPool(device) if device.type == "cuda" and eager is None else None
