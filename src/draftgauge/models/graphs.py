"""CUDA graphs of passes whose shapes are fixed: the launches of a whole pass, replayed by one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from draftgauge.models.lean_weights import LeanWeights

Run = Callable[[], Tensor]


class GraphPool:
    """Graphs on one device that share memory: no two of them run at once, and what one returns is read right away."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # the default one of torch.cuda.graph is of one device for all
        self._memory = torch.cuda.graph_pool_handle()
        self._records = True

    def capture(self, run: Run) -> Run:
        """Record what ``run`` launches. The function that comes back launches it again, on the same memory.

        What ``run`` needs for the first time (workspaces of libraries) must be there: run it once before. Where it
        cannot be recorded it comes back as it is, to be launched kernel by kernel, and so does all that follows.
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
            warnings.warn(f"passes are launched kernel by kernel, as none could be recorded: {why}", stacklevel=2)
            return run

        def replay() -> Tensor:
            with torch.cuda.device(self._device):
                graph.replay()
            return output

        return replay


def graph_pool(weights: LeanWeights, device: torch.device) -> GraphPool | None:
    """A pool for the graphs of a decoder's passes; None where they are not recorded."""
    return GraphPool(device) if device.type == "cuda" and weights.eager is None else None
