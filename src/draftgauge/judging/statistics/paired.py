"""Intervals by resampling prompts: they are the samples, as the steps of one prompt depend on each other.

The quantities are ratios of sums (tokens over seconds, accepted over drafted), so a resample is a vector of how often
each prompt was drawn. All resamples are two matrix products. A 95% interval needs 2,000 resamples. Below 0.01 a p-value
needs 10,000.

A single prompt has no interval and no p-value: they are NaN. A bootstrap of few prompts underestimates how much they
vary: where all of five prompts gain, every resample gains. So p-values of up to :data:`MOST_EXCHANGED` prompts are
exact. Without a difference the two could be exchanged on any prompt. The p-value is the share of all such exchanges
with a difference as large (Fisher 1935), at least 2 / 2**prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from draftgauge.judging.statistics.bootstrap import RESAMPLES, Floats, Interval, all_signs, interval_of, resampled_sums

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
