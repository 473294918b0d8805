"""Sums of parts, none below 0, that come closest to noisy times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

ROUNDS = 20
LEAST_DEVIATION = 1e-6
"""Least deviation that counts, as a share of a sample's scale."""

Floats = NDArray[np.float64]


def least_deviations(shares: Floats, values: Floats, scale: Floats) -> tuple[Floats, float]:
    """The parts ``[parts]`` whose sums deviate least from the values, in absolute terms, so that stalls count little:
    the median, for sums of several parts; and how far they deviate in the
    mean. By iteratively reweighted least squares.

    Args:
        shares: ``[samples, parts]`` how often each part is in a sum.
        values: ``[samples]``.
        scale: ``[samples]`` above 0; deviations count in proportion to it.
    """
    weights = 1 / scale
    for _ in range(ROUNDS):
        roots = np.sqrt(weights)
        parts, _ = nnls(shares * roots[:, None], values * roots)
        away = np.abs(values - shares @ parts) / scale
        weights = 1 / (scale * np.maximum(away, LEAST_DEVIATION) * scale)
    return parts, float(away.mean())
