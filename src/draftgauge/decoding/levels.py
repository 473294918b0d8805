"""Timed steps without the machine's drift.

A machine that others share runs a fifth faster or slower from one second to the next, on all parts of a step and on all
lengths alike. Steps next to each other, whatever they draft, tell how fast it was; what is left says how
lengths differ, from a third of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftgauge.decoding.stopwatch import Sample

NEIGHBOURS = 6
"""Samples before and after each that say how fast the machine was."""
_WINDOW = 2 * NEIGHBOURS + 1


def steadied(samples: Sequence[Sample]) -> list[Sample]:
    """The samples, in the order of their timing, as they would be at the median speed of the machine."""
    if len(samples) < 2 * NEIGHBOURS:
        return list(samples)
    kinds: dict[tuple[int, bool, bool], list[int]] = {}
    for index, sample in enumerate(samples):
        kinds.setdefault((sample.gamma, bool(sample.reads), sample.repeats), []).append(index)
    relative = np.array([sample.step for sample in samples])
    for indices in kinds.values():
        relative[indices] /= np.median(relative[indices])
    around = np.lib.stride_tricks.sliding_window_view(np.pad(relative, NEIGHBOURS, constant_values=np.nan), _WINDOW)
    levels: NDArray[np.float64] = np.nanmedian(np.delete(around, NEIGHBOURS, axis=1), axis=1)
    levels /= np.median(levels)
    return [
        sample._replace(draft=sample.draft / level, verify=sample.verify / level, step=sample.step / level)
        for sample, level in zip(samples, levels.tolist(), strict=True)
    ]
