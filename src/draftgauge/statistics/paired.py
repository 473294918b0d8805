"""Intervals by resampling prompts: they are the samples, as the steps of one prompt depend on each other.

The quantities are ratios of sums (tokens over seconds, accepted over drafted), so a resample is a vector of how often
each prompt was drawn, and all resamples are two matrix products. ``resamples`` is how many: 2,000 place the ends of a
95% interval well, p-values below 0.01 want 10,000; ``seed`` is that of the resampling.

A single prompt has no interval and no p-value: they are NaN. A bootstrap of few prompts knows too little of how much
they vary: where all of five prompts gain, every resample gains. So p-values of up to :data:`MOST_EXCHANGED` prompts are
exact: were there no difference, the two could change places on any prompt, and p is the share of all such exchanges
with a difference as large (Fisher 1935); at least 2 / 2**prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.statistics.bootstrap import (
    RESAMPLES,
    Comparison,
    Interval,
    all_signs,
    bootstrap_p_value,
    draw_counts,
    interval_of,
)

MOST_EXCHANGED = 12


def ratio_interval(
    numerator: ArrayLike, denominator: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Sum over prompts of a numerator over that of a denominator, e.g. tokens per second.

    Args:
        numerator, denominator: ``[prompts]``, at least one.
        resamples, seed: of the interval.
    """
    return interval_of(*_ratios(numerator, denominator, resamples, seed))


def paired_gain(
    tokens: ArrayLike,
    seconds: ArrayLike,
    base_tokens: ArrayLike,
    base_seconds: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Gain of one ratio of sums over another on the same prompts: their quotient minus 1.

    Args:
        tokens, seconds: ``[prompts]`` of the one.
        base_tokens, base_seconds: ``[prompts]`` of what it is compared with.
        resamples, seed: of the interval.
    """
    estimate, resampled = gain_resamples(tokens, seconds, base_tokens, base_seconds, resamples=resamples, seed=seed)
    exchanged = _exchanged_gains(tokens, seconds, base_tokens, base_seconds)
    p_value = _exchange_p_value(exchanged) if len(exchanged) else bootstrap_p_value(resampled)
    return Comparison(*interval_of(estimate, resampled), p_value)


def gain_resamples(
    tokens: ArrayLike,
    seconds: ArrayLike,
    base_tokens: ArrayLike,
    base_seconds: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, NDArray[np.float64]]:
    """The gain of :func:`paired_gain` and its resamples ``[resamples]``, for intervals over more than prompts."""
    estimate, resampled = _ratios(tokens, seconds, resamples, seed)
    base, base_resampled = _ratios(base_tokens, base_seconds, resamples, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.float64(estimate) / base - 1), resampled / base_resampled - 1


def median_interval(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Median over prompts and repetitions, e.g. of ratios of two times that were measured side by side.

    Args:
        values: ``[prompts, repetitions]``; NaN is left out. Prompts are drawn, with all their repetitions.
        resamples, seed: of the interval.
    """
    table = np.asarray(values, np.float64)
    prompt, repetition = np.nonzero(np.isfinite(table))
    order = np.argsort(table[prompt, repetition], kind="stable")
    ordered, prompt = table[prompt, repetition][order], prompt[order]
    if not len(ordered):
        return interval_of(float("nan"), ordered)
    counts = draw_counts(len(table), resamples, seed)
    medians = [_weighted_median(ordered, weights) for weights in counts[:, prompt]] if len(table) > 1 else []
    return interval_of(_weighted_median(ordered, np.ones(len(ordered))), np.array(medians))


def _weighted_median(ordered: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """The median of sorted values, each taken as often as its weight says; NaN of none."""
    reached = np.cumsum(weights)
    if reached[-1] == 0:
        return float("nan")
    middle = np.searchsorted(reached, [(reached[-1] - 1) // 2, reached[-1] // 2], side="right")
    return float(ordered[middle].mean())


def paired_share(
    seconds: ArrayLike,
    base_seconds: ArrayLike,
    top_seconds: ArrayLike,
    tokens: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Share of the way from one speed to another that a third one has gone, all of the same tokens.

    Args:
        seconds: ``[prompts]`` of the one that goes; its share is 0 where it is as slow as the base, 1 as fast as the
            top.
        base_seconds, top_seconds: ``[prompts]`` of the ends of the way.
        tokens: ``[prompts]``.
        resamples, seed: of the interval.

    Returns:
        NaN where base and top are equal up to rounding errors.
    """
    parts = [_ratios(tokens, each, resamples, seed) for each in (seconds, base_seconds, top_seconds)]
    speed, base, top = (np.concatenate([[estimate], resampled]) for estimate, resampled in parts)
    way = top - base
    none = np.isclose(top, base, rtol=1e-9, atol=0.0)
    shares = np.divide(speed - base, way, out=np.full(len(way), np.nan), where=~none)
    return interval_of(float(shares[0]), shares[1:])


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted to control the family-wise error (Holm 1979); NaN stays NaN and does not count."""
    order = sorted((p, index) for index, p in enumerate(p_values) if p == p)
    adjusted, running = [float("nan")] * len(p_values), 0.0
    for rank, (p, index) in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p))
        adjusted[index] = running
    return adjusted


def _exchange_p_value(differences: NDArray[np.float64]) -> float:
    """The share of exchanges ``[1 + others]`` whose difference is as large as that of the data, which comes first."""
    defined = np.abs(differences[~np.isnan(differences)])
    if np.isnan(differences[0]):
        return float("nan")
    return float((defined >= defined[0] * (1 - 1e-9) - 1e-12).mean())


def _exchanged_gains(
    tokens: ArrayLike, seconds: ArrayLike, base_tokens: ArrayLike, base_seconds: ArrayLike
) -> NDArray[np.float64]:
    """``[2**prompts]`` logarithm of the quotient of two ratios by exchange, none first; empty of one prompt, and above
    :data:`MOST_EXCHANGED`.
    """
    one, base = (
        np.stack(np.broadcast_arrays(*(np.asarray(part, np.float64) for part in parts)), axis=-1)
        for parts in ((tokens, seconds), (base_tokens, base_seconds))
    )
    if not 1 < len(one) <= MOST_EXCHANGED:
        return np.empty(0)
    half = all_signs(len(one)) @ (one - base) / 2
    middle = (one + base).sum(axis=0) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = (np.log(sums[:, 0] / sums[:, 1]) for sums in (middle + half, middle - half))
        difference: NDArray[np.float64] = first - second
        return difference


def _ratios(
    numerator: ArrayLike, denominator: ArrayLike, resamples: int, seed: int
) -> tuple[float, NDArray[np.float64]]:
    """The ratio over all prompts and in every resample ``[resamples]``; NaN where the denominator is 0, and of a single
    prompt, which says nothing of how prompts differ.
    """
    above, below = np.broadcast_arrays(np.asarray(numerator, np.float64), np.asarray(denominator, np.float64))
    both = np.stack([above, below], axis=1)
    sums, totals = np.concatenate([both.sum(axis=0)[None], draw_counts(len(above), resamples, seed) @ both]).T
    ratios = np.divide(sums, totals, out=np.full(len(sums), np.nan), where=totals != 0)
    return float(ratios[0]), ratios[1:] if len(above) > 1 else np.full(resamples, np.nan)
