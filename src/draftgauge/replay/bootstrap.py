"""Intervals by resampling prompts: they are the samples, as the steps of one prompt depend on each other.

The quantities are ratios of sums (tokens over seconds, accepted over drafted), so a resample is a vector of how often each
prompt was drawn, and all resamples are two matrix products. Percentile intervals (Efron and Tibshirani 1993, chapter 13).
With a fixed seed and number of prompts the same prompts are drawn, whatever the quantity: comparisons are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
TEST_RESAMPLES = 10_000
"""For p-values: the least one is 2 over this."""
LEVEL = 0.95


class Interval(NamedTuple):
    """An estimate from all prompts, and the ends of its interval; NaN where it is not defined."""

    estimate: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A difference or gain with its interval, and the two-sided bootstrap p-value of there being none."""

    estimate: float
    low: float
    high: float
    p_value: float


@lru_cache(maxsize=8)
def draw_counts(prompts: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """``[resamples, prompts]`` how often each prompt is in each resample; read-only, as it is kept for the next call."""
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples).astype(np.float64)
    counts.flags.writeable = False
    return counts


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """Sum over prompts of a numerator over that of a denominator, e.g. tokens per second.

    Args:
        numerator, denominator: ``[prompts]``, at least one.
        resamples: how many; 2,000 place the ends of a 95% interval well, p-values below 0.01 want 10,000.
        seed: of the resampling.
        level: of the interval.
    """
    estimate, resampled = _ratios(numerator, denominator, resamples, seed)
    return Interval(estimate, *_ends(resampled, level))


def paired_gain(
    tokens: ArrayLike,
    seconds: ArrayLike,
    base_tokens: ArrayLike,
    base_seconds: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Comparison:
    """Gain of one ratio of sums over another on the same prompts: their quotient minus 1.

    Args:
        tokens, seconds: ``[prompts]`` of the one.
        base_tokens, base_seconds: ``[prompts]`` of what it is compared with.
        resamples, seed, level: as in :func:`ratio_interval`.
    """
    estimate, resampled = _ratios(tokens, seconds, resamples, seed)
    base, base_resampled = _ratios(base_tokens, base_seconds, resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _comparison(float(np.float64(estimate) / base - 1), resampled / base_resampled - 1, level)


def paired_difference(
    numerator: ArrayLike,
    denominator: ArrayLike,
    base_numerator: ArrayLike,
    base_denominator: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Comparison:
    """Difference of two ratios of sums on the same prompts; with denominators of 1, of two means. Arguments as in :func:`paired_gain`."""
    estimate, resampled = _ratios(numerator, denominator, resamples, seed)
    base, base_resampled = _ratios(base_numerator, base_denominator, resamples, seed)
    return _comparison(estimate - base, resampled - base_resampled, level)


def paired_share(
    seconds: ArrayLike,
    base_seconds: ArrayLike,
    top_seconds: ArrayLike,
    tokens: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    level: float = LEVEL,
) -> Interval:
    """Share of the way from one speed to another that a third one has gone, all of the same tokens.

    Args:
        seconds: ``[prompts]`` of the one that goes; 0 is as slow as the base, 1 as fast as the top, and below 0 slower than the base.
        base_seconds, top_seconds: ``[prompts]`` of the ends of the way.
        tokens: ``[prompts]``.
        resamples, seed, level: as in :func:`ratio_interval`.

    Returns:
        NaN where there is no way to go: a way of rounding errors only is none.
    """
    parts = [_ratios(tokens, each, resamples, seed) for each in (seconds, base_seconds, top_seconds)]
    speed, base, top = (np.concatenate([[estimate], resampled]) for estimate, resampled in parts)
    way = top - base
    none = np.isclose(top, base, rtol=1e-9, atol=0.0)
    shares = np.divide(speed - base, way, out=np.full(len(way), np.nan), where=~none)
    return Interval(float(shares[0]), *_ends(shares[1:], level))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that keep the chance of any false finding below the level (Holm 1979); NaN stays NaN and does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p == p)
    adjusted, running = [float("nan")] * len(p_values), 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p))
        adjusted[index] = running
    return adjusted


def _ratios(
    numerator: ArrayLike, denominator: ArrayLike, resamples: int, seed: int
) -> tuple[float, NDArray[np.float64]]:
    """The ratio over all prompts and in every resample ``[resamples]``; NaN where the denominator is 0."""
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    both = np.stack([above, below], axis=1)
    sums, totals = np.concatenate([both.sum(axis=0)[None], draw_counts(len(above), resamples, seed) @ both]).T
    ratios = np.divide(sums, totals, out=np.full(len(sums), np.nan), where=totals != 0)
    return float(ratios[0]), ratios[1:]


def _ends(resampled: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Percentiles of the resamples in which the quantity is defined."""
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _comparison(estimate: float, resampled: NDArray[np.float64], level: float) -> Comparison:
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return Comparison(estimate, float("nan"), float("nan"), float("nan"))
    # The data as observed count as one more resample, so that p is never 0 (Davison and Hinkley 1997, section 4.2).
    tail = min((defined <= 0).sum(), (defined >= 0).sum()) + 1
    return Comparison(estimate, *_ends(resampled, level), p_value=float(min(1.0, 2 * tail / (len(defined) + 1))))
