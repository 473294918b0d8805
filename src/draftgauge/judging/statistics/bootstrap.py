"""Percentile bootstrap intervals (Efron and Tibshirani 1993, chapter 13) and p-values, and the signs of exact tests.

The seed is fixed: for the same number of items the same ones are drawn, so comparisons are paired.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000
TEST_RESAMPLES = 10_000
"""Resamples for p-values: the least one is 2 over this."""
LEVEL = 0.95
MOST_KEPT = 2**25  # numbers drawn for resamples that are held at a time
SMALL = 2**19  # so many are 4 MiB

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate from all the data, and the ends of its interval; NaN where it is not defined."""

    estimate: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A difference or gain with its interval, and the two-sided p-value of there being none."""

    estimate: float
    low: float
    high: float
    p_value: float


def columns(name: str, found: tuple[float, ...]) -> dict[str, float]:
    """A figure and the ends of its interval as columns of a flat row: ``NAME``, ``NAME_low``, ``NAME_high``."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), found, strict=False))


@lru_cache(maxsize=8)
def all_signs(count: int) -> Floats:
    """``[2**count, count]`` every choice of 1 and -1, read-only; all 1 comes first."""
    signs = np.array(list(product((1.0, -1.0), repeat=count)))
    signs.flags.writeable = False
    return signs


@lru_cache(maxsize=32)
def draw_counts(count: int, resamples: int) -> Floats:
    """``[resamples, count]`` how often each item is in each resample; read-only, as it is kept for the next calls."""
    return drawn(np.random.default_rng(0), count, resamples)


# Policies are compared by turns on tasks of several sizes; of large ones fewer fit into memory.
_large = lru_cache(maxsize=2)(draw_counts.__wrapped__)


def resampled_sums(values: Floats, resamples: int) -> Floats:
    """``[resamples, columns]`` sums of the rows of ``[count, columns]`` drawn with replacement, always alike."""
    if len(values) * resamples <= MOST_KEPT:
        draws = draw_counts if len(values) * resamples <= SMALL else _large
        return draws(len(values), resamples) @ values
    rng, block = np.random.default_rng(0), max(1, MOST_KEPT // len(values))
    sizes = [min(block, resamples - start) for start in range(0, resamples, block)]
    return np.concatenate([drawn(rng, len(values), size) @ values for size in sizes])


def drawn(rng: np.random.Generator, count: int, resamples: int) -> Floats:
    counts = rng.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
    counts.flags.writeable = False
    return counts


def interval_of(estimate: float, resampled: Floats) -> Interval:
    """The percentile interval from the resamples ``[resamples]`` in which the quantity is defined, not NaN."""
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return Interval(estimate, float("nan"), float("nan"))
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate, float(low), float(high))


def bootstrap_p_value(resampled: Floats) -> float:
    """Two-sided p-value of there being no difference, from resampled differences; NaN where none is defined."""
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return float("nan")
    # The data as observed count as one more resample, so that p is never 0 (Davison and Hinkley 1997, section 4.2).
    tail = min((defined <= 0).sum(), (defined >= 0).sum()) + 1
    return float(min(1.0, 2 * tail / (len(defined) + 1)))
