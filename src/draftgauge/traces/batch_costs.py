"""What the passes of a batch cost on one machine, measured, by batch size, tokens and context length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import map_coordinates

from draftgauge.core.errors import TraceError
from draftgauge.traces.checks import are_seconds

BatchTable = tuple[tuple[tuple[float, ...], ...], ...]
Numbers = NDArray[np.float64] | NDArray[np.int64] | float


@dataclass(frozen=True)
class BatchCosts:
    """Seconds of the parts of a step that several requests take together, interpolated linearly between the measured
    batch sizes, context lengths and tokens a request.

    Attributes:
        batches: ``[B]`` requests at once, increasing from 1.
        contexts: ``[C]`` tokens of the longest request, increasing; outside them the nearest counts.
        verify: ``[B, C, G + 1]``; column ``k - 1`` is a step that verifies ``k`` tokens of every request.
        draft: ``[B, C, K]``; column ``k - 1`` is a pass of the drafter over ``k`` tokens of every request; the last
            stands for all more.
        signals: ``[B]`` what a pass of the drafter takes longer where a policy looks at its tokens.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    verify: BatchTable
    draft: BatchTable
    signals: tuple[float, ...]

    @property
    def gamma_max(self) -> int:
        return len(self.verify[0][0]) - 1

    @property
    def largest(self) -> int:
        return self.batches[-1]

    def verify_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        """Seconds of steps that verify ``tokens`` tokens of ``batch`` requests together and draft none."""
        each = np.asarray(tokens, np.float64) / batch
        if each.size and (each.min() < 1 or each.max() > self.gamma_max + 1):
            raise TraceError(
                f"costs were measured for 1 to {self.gamma_max + 1} tokens a request, asked for {float(each.max()):g}: "
                "profile with a larger gamma_max"
            )
        return self._interpolated(self.verify, batch, each, context)

    def draft_seconds(self, batch: Numbers, tokens: Numbers, context: Numbers) -> NDArray[np.float64]:
        return self._interpolated(self.draft, batch, np.asarray(tokens, np.float64) / batch, context)

    def signal_seconds(self, batch: Numbers) -> NDArray[np.float64]:
        return np.asarray(np.interp(batch, self.batches, self.signals))

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
        if len(self.signals) != len(self.batches) or not are_seconds(self.signals):
            raise TraceError("signals must be seconds, 0 or more, one for each batch size")

    def _interpolated(
        self, table: BatchTable, batch: Numbers, each: NDArray[np.float64], context: Numbers
    ) -> NDArray[np.float64]:
        """Linear in batch, context and tokens a request, ``each``."""
        batches, contexts, tokens = np.broadcast_arrays(np.asarray(batch, np.float64), context, each)
        if batches.size and not 1 <= batches.min() <= batches.max() <= self.largest:
            asked = f"asked for {batches.min():g} to {batches.max():g}: profile larger batches"
            raise TraceError(f"costs were measured for batches of 1 to {self.largest}, {asked}")
        row = np.interp(batches, self.batches, np.arange(len(self.batches)))
        return between(table, row, np.interp(contexts, self.contexts, np.arange(len(self.contexts))), tokens - 1)


def between(table: ArrayLike, *places: ArrayLike) -> NDArray[np.float64]:
    """Values of a table at ``places`` along each of its axes, linearly between its entries, and the last one beyond."""
    along = np.broadcast_arrays(*places)
    values = map_coordinates(np.asarray(table), np.reshape(along, (len(along), -1)), order=1, mode="nearest")
    return np.asarray(values.reshape(along[0].shape))
