"""What a timed piece of work typically takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GROUPS = 5


def typical(samples: Sequence[float]) -> float:
    """The median of the means of groups of samples, each from all over the time of measuring.

    Times are skewed, and who repeats the work pays their mean; a single stall of the machine spoils no more than one
    group.
    """
    values = np.asarray(samples, np.float64)
    groups = min(GROUPS, len(values))
    return float(np.median([values[start::groups].mean() for start in range(groups)]))
