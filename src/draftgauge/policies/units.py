"""Units that policies of other papers use, from those of the signals."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LEAST_PROBABILITY = 2.0**-20
"""Probabilities below count as this much: what float32 still tells apart next to 1."""

_NATS_PER_BIT = math.log(2.0)


def nats(bits: float) -> float:
    """An entropy in nats, as papers have it, from bits, as signals have it; rounding errors below 0 count as 0."""
    return _NATS_PER_BIT * max(bits, 0.0)


def all_nats(bits: NDArray[np.float32]) -> NDArray[np.float64]:
    """:func:`nats` of many, in the precision of one."""
    return _NATS_PER_BIT * np.maximum(bits.astype(np.float64), 0.0)
