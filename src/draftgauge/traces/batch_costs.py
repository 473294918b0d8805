"""What the passes of a batch cost on one machine, measured, by batch size, tokens and context length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.traces.checks import are_seconds

BatchTable = tuple[tuple[tuple[float, ...], ...], ...]
Numbers = NDArray[np.float64] | NDArray[np.int64] | float


@dataclass(frozen=True)
class BatchCosts:
    """Measured seconds of the passes of a step that several requests take together.

    ``B`` is the number of measured batch sizes, ``C`` of context lengths. Between them, and between whole numbers of
    tokens a request, costs are interpolated linearly; outside the context lengths the nearest counts.

    Attributes:
        batches: ``[B]`` requests at once, increasing from 1.
        contexts: ``[C]`` tokens of the longest request, increasing.
        verify: ``[B, C, G + 1]``; column ``k - 1`` is the target's pass over ``k`` tokens of every request.
        draft: ``[B, C, K]``; column ``k - 1`` is the drafter's first pass of a step, over ``k`` tokens of every
            request; the last stands for all more.
        onward: ``[B, C]`` each later pass of the drafter, over one token of every request: it finds the drafter's
            weights in the processor's caches, where the first finds the target's.
        overhead: ``[B]`` seconds that a step takes outside its passes.
        asking: ``[B]`` what a pass of the drafter takes longer where signals are read after it.
        ragged_verify: ``[B, 2]`` what a pass of the target takes longer than one over as many tokens spread evenly:
            once, and for every place by which requests have fewer tokens than the one with the most. Empty where it
            was not measured: nothing is charged for it then.
        ragged_draft: ``[B, 2]`` likewise a pass of the drafter from which requests between others are missing: once,
            and for every one that is missing. Its cache is seen from the first request to the last.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    verify: BatchTable
    draft: BatchTable
    onward: tuple[tuple[float, ...], ...]
    overhead: tuple[float, ...]
    asking: tuple[float, ...]
    ragged_verify: tuple[tuple[float, float], ...] = ()
    ragged_draft: tuple[tuple[float, float], ...] = ()

    @property
    def gamma_max(self) -> int:
        """The longest draft measured."""
        return len(self.verify[0][0]) - 1

    @property
    def largest(self) -> int:
        """The largest batch measured."""
        return self.batches[-1]

    def verify_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        """Seconds of the target's passes over ``tokens`` tokens of ``batch`` requests together.

        Args:
            batch: requests, 1 to :attr:`largest`.
            tokens: of all of them, those that each takes in besides its draft included.
            context: tokens of the longest request; all broadcast.

        Raises:
            TraceError: for a larger batch, or more tokens a request, than were measured.
        """
        return self._interpolated(self.verify, batch, tokens, context, exact=True)

    def draft_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        """Seconds of the drafter's first pass over ``tokens`` tokens of all requests, see :meth:`verify_seconds`."""
        return self._interpolated(self.draft, batch, tokens, context, exact=False)

    def onward_seconds(self, batch: Numbers, context: Numbers) -> NDArray[np.float64]:
        """Seconds of later passes of the drafter, over one token of each of ``batch`` requests."""
        table = np.asarray(self.onward)[:, :, None]
        return self._interpolated(table, batch, batch, context, exact=False)

    def step_seconds(self, batch: Numbers) -> NDArray[np.float64]:
        """Seconds of a step of ``batch`` requests outside its passes."""
        self._check_batch(np.asarray(batch, np.float64))
        return np.asarray(np.interp(batch, self.batches, self.overhead))

    def asking_seconds(self, batch: Numbers) -> NDArray[np.float64]:
        """Seconds that reading its signals adds to a drafter's pass over ``batch`` requests."""
        return np.asarray(np.interp(batch, self.batches, self.asking))

    def ragged_verify_seconds(self, batch: Numbers, padded: Numbers) -> NDArray[np.float64]:
        """Seconds that ``padded`` places of padding add to passes of the target."""
        return self._ragged(self.ragged_verify, batch, padded)

    def ragged_draft_seconds(self, batch: Numbers, missing: Numbers) -> NDArray[np.float64]:
        """Seconds that ``missing`` requests between others add to passes of the drafter."""
        return self._ragged(self.ragged_draft, batch, missing)

    def validate(self) -> None:
        """Raise :class:`TraceError` naming the first field whose shape or values cannot be."""
        for name in ("batches", "contexts"):
            values = getattr(self, name)
            if not values or values[0] < 1 or any(later <= earlier for earlier, later in pairwise(values)):
                raise TraceError(f"{name} must be increasing numbers from 1 on, at least one, not {list(values)}")
        if self.batches[0] != 1:
            raise TraceError(f"batches must begin with 1, not {self.batches[0]}: drafts end at different lengths")
        for name in ("verify", "draft"):
            table = getattr(self, name)
            widths = {len(row) for each in table for row in each}
            if len(table) != len(self.batches) or any(len(each) != len(self.contexts) for each in table):
                raise TraceError(f"{name} must have a row for each batch size and context length")
            if len(widths) != 1 or not widths.pop():
                raise TraceError(f"{name} must have as many columns everywhere, at least one")
            if not are_seconds(table, positive=True):
                raise TraceError(f"{name} must be seconds greater than 0")
        if {len(each) for each in self.onward} != {len(self.contexts)} or len(self.onward) != len(self.batches):
            raise TraceError("onward must have seconds for each batch size and context length")
        if not are_seconds(self.onward, positive=True):
            raise TraceError("onward must be seconds greater than 0")
        for name in ("overhead", "asking"):
            values = getattr(self, name)
            if len(values) != len(self.batches) or not are_seconds(values):
                raise TraceError(f"{name} must be seconds, 0 or more, one for each batch size")

        for name in ("ragged_verify", "ragged_draft"):
            table = getattr(self, name)
            if table and (len(table) != len(self.batches) or {len(row) for row in table} != {2}):
                raise TraceError(f"{name} must have two numbers for each batch size")
            if not are_seconds(table):
                raise TraceError(f"{name} must be seconds, 0 or more")

    def _ragged(self, table: tuple[tuple[float, float], ...], batch: Numbers, padded: Numbers) -> NDArray[np.float64]:
        batch_, padded_ = np.asarray(batch, np.float64), np.asarray(padded, np.float64)
        self._check_batch(batch_)
        if not table:
            return np.zeros(np.broadcast_shapes(batch_.shape, padded_.shape))
        once, each = (np.interp(batch_, self.batches, column) for column in np.asarray(table).T)
        return np.where(padded_ > 0, once + each * padded_, 0.0)

    def _check_batch(self, batch: NDArray[np.float64]) -> None:
        if batch.size and (batch.max() > self.largest or batch.min() < 1):
            asked = int(batch.max() if batch.max() > self.largest else batch.min())
            raise TraceError(
                f"costs were measured for batches of 1 to {self.largest}, asked for {asked}: profile with "
                "larger batches"
            )

    def _interpolated(
        self, table: BatchTable | NDArray[np.float64], batch: Numbers, tokens: Numbers, context: Numbers, exact: bool
    ) -> NDArray[np.float64]:
        values = np.asarray(table)
        batch_, tokens_, context_ = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in (batch, tokens, context)))
        self._check_batch(batch_)
        each, most = tokens_ / batch_, values.shape[2]
        if each.size and (each.min() < 1 or (exact and each.max() > most)):
            raise TraceError(
                f"costs were measured for 1 to {most} tokens a request, asked for {float(each.max()):g}: profile with "
                "a larger gamma_max"
            )
        nodes = (
            np.interp(batch_, self.batches, np.arange(len(self.batches))),
            np.interp(context_, self.contexts, np.arange(len(self.contexts))),
            np.minimum(each - 1, most - 1),
        )
        below = [np.floor(node).astype(np.int64) for node in nodes]
        above = [np.minimum(low + 1, size - 1) for low, size in zip(below, values.shape, strict=True)]
        shares = [node - low for node, low in zip(nodes, below, strict=True)]
        seconds = np.zeros(batch_.shape)
        for corner in range(8):
            upper = [bool(corner >> axis & 1) for axis in range(3)]
            index = tuple(above[axis] if up else below[axis] for axis, up in enumerate(upper))
            weight = np.prod([shares[axis] if up else 1 - shares[axis] for axis, up in enumerate(upper)], axis=0)
            seconds = seconds + weight * values[index]
        return seconds
