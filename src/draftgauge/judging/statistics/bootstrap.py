"""Percentile bootstrap intervals (Efron and Tibshirani 1993, chapter 13), and tests of paired data.

The seed is fixed: for the same number of items the same ones are drawn, so comparisons are paired.

Prompts are the samples, as the steps of one prompt depend on each other. The quantities are ratios of sums (tokens over
seconds, accepted over drafted), so a resample is a vector of how often each prompt was drawn. All resamples are two
matrix products. A 95% interval needs 2,000 resamples. Below 0.01 a p-value needs 10,000.

A single prompt has no interval and no p-value: they are NaN. A bootstrap of few prompts underestimates how much they
vary: where all of five prompts gain, every resample gains. So p-values of up to :data:`MOST_EXCHANGED` prompts are
exact. Without a difference the two could be exchanged on any prompt. The p-value is the share of all such exchanges
with a difference as large (Fisher 1935), at least 2 / 2**prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
TEST_RESAMPLES = 10_000
"""Resamples for p-values: the least one is 2 over this."""
CONFIDENCE = 0.95
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
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(estimate, float(low), float(high))


def bootstrap_p_value(resampled: Floats) -> float:
    """Two-sided p-value of there being no difference, from resampled differences; NaN where none is defined."""
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return float("nan")
    # The data as observed count as one more resample, so that p is never 0 (Davison and Hinkley 1997, section 4.2).
    tail = min((defined <= 0).sum(), (defined >= 0).sum()) + 1
    return float(min(1.0, 2 * tail / (len(defined) + 1)))


MOST_EXCHANGED = 12


def ratio_interval(numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES) -> Interval:
    """Sum over prompts ``[prompts]`` of a numerator over that of a denominator, e.g. tokens per second."""
    return interval_of(*ratios(numerator, denominator, resamples))


def ratios(numerator: ArrayLike, denominator: ArrayLike, resamples: int) -> tuple[float, Floats]:
    """The ratio over all prompts and in each resample ``[resamples]``; NaN of a denominator of 0, and of one prompt."""
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    both = np.stack([above, below], axis=1)
    sums, totals = np.concatenate([both.sum(axis=0)[None], resampled_sums(both, resamples)]).T
    quotients = np.divide(sums, totals, out=np.full(len(sums), np.nan), where=totals != 0)
    return float(quotients[0]), quotients[1:] if len(above) > 1 else np.full(resamples, np.nan)


def exchange_p_value(one: tuple[ArrayLike, ArrayLike], base: tuple[ArrayLike, ArrayLike]) -> float | None:
    """The exact p-value of two ratios of sums being alike, numerators and denominators ``[prompts]`` each. It is the
    share of all exchanges between the two with a difference as large; None of many prompts, and of one."""
    ours, theirs = (
        np.stack(np.broadcast_arrays(*(np.asarray(part, np.float64) for part in parts)), axis=-1)
        for parts in (one, base)
    )
    if not 1 < len(ours) <= MOST_EXCHANGED:
        return None
    half = all_signs(len(ours)) @ (ours - theirs) / 2  # the data themselves come first
    middle = (ours + theirs).sum(axis=0) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (np.log(sums[:, 0] / sums[:, 1]) for sums in (middle + half, middle - half))
        differences = first - second
    if np.isnan(differences[0]):
        return float("nan")
    defined = np.abs(differences[~np.isnan(differences)])
    return float((defined >= defined[0] * (1 - 1e-9) - 1e-12).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted to control the family-wise error (Holm 1979); NaN stays NaN and does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p == p)
    adjusted, running = [float("nan")] * len(p_values), 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p))
        adjusted[index] = running
    return adjusted
