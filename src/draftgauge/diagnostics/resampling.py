"""Intervals over prompts and seeds at once, for counts of reached and accepted drafts; no torch.

Every training seed is evaluated on the same prompts, so seeds and prompts are crossed. A resample draws seeds and prompts independently,
with replacement, and weighs every (seed, prompt) cell by the product of how often both were drawn: the pigeonhole bootstrap (Owen 2007,
"The pigeonhole bootstrap"), mildly conservative for the interaction of both. Few seeds carry little information on their own spread:
with three, the part of the interval that comes from seeds is too narrow by a factor of about sqrt(2/3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.replay.bootstrap import LEVEL, Comparison, Interval

__all__ = [
    "Comparison",
    "Counts",
    "Interval",
    "Measure",
    "alpha_intervals",
    "at_depths",
    "difference",
    "interval",
    "mean_accepted",
    "rates",
    "retention",
]

RESAMPLES = 4000

Floats = NDArray[np.float64]
Measure = Callable[[Floats], Floats]
"""From acceptance rates ``[..., depths]`` to one figure ``[...]``."""


@dataclass(frozen=True)
class Counts:
    """How often each depth of a draft was reached and accepted.

    Attributes:
        reached: ``[seeds, prompts, depths]`` drafts whose earlier tokens were all accepted.
        accepted: ``[seeds, prompts, depths]`` those of them whose token at this depth was accepted too.
    """

    reached: NDArray[np.int64]
    accepted: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.reached.shape == self.accepted.shape
        assert self.reached.ndim == 3

    @staticmethod
    def of(reached: ArrayLike, accepted: ArrayLike) -> Counts:
        """From nested lists; one seed may leave its axis out."""
        arrays = [np.asarray(values, np.int64) for values in (reached, accepted)]
        return Counts(*(array[None] if array.ndim == 2 else array for array in arrays))

    @staticmethod
    def stack(parts: list[Counts]) -> Counts:
        """Several seeds of the same prompts."""
        return Counts(np.concatenate([p.reached for p in parts]), np.concatenate([p.accepted for p in parts]))

    def prompts(self, chosen: NDArray[np.bool_]) -> Counts:
        """Some of the prompts only.

        Args:
            chosen: ``[prompts]``.
        """
        return Counts(self.reached[:, chosen], self.accepted[:, chosen])


def rates(counts: Counts, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Acceptance rates ``[1 + resamples, depths]``: of all the data first, then of every resample; NaN where no draft got so deep.

    Shapes and ``seed`` decide what is drawn, so two drafters with the same seeds and prompts are resampled alike: paired.
    """
    seeds, prompts, _ = counts.reached.shape
    by_seed, by_prompt = _weights(seeds, prompts, resamples, seed)
    totals = []
    for values in (counts.accepted, counts.reached):
        within = np.einsum("rn,snk->rsk", by_prompt, values.astype(np.float64), optimize=True)
        totals.append(np.einsum("rs,rsk->rk", by_seed, within))
    above, below = totals
    found: Floats = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return found


@lru_cache(maxsize=8)
def _weights(seeds: int, prompts: int, resamples: int, seed: int) -> tuple[Floats, Floats]:
    """How often each seed and each prompt was drawn, kept for the next call."""
    rng = np.random.default_rng(seed)
    return _drawn(rng, seeds, resamples), _drawn(rng, prompts, resamples)


def _drawn(rng: np.random.Generator, count: int, resamples: int) -> Floats:
    """``[1 + resamples, count]`` how often each was drawn; once each in the first row."""
    draws = rng.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
    drawn = np.concatenate([np.ones((1, count)), draws])
    drawn.flags.writeable = False
    return drawn


def mean_accepted(alpha: Floats) -> Floats:
    """MAT, mean accepted tokens a step with the target's own: ``1 + sum_k prod_{j<=k} alpha_j`` (KVShot, section 3).

    A depth that no draft reached adds nothing, as the product before it is zero.
    """
    return np.asarray(1 + np.cumprod(np.nan_to_num(alpha), axis=-1).sum(-1))


def retention(alpha: Floats) -> Floats:
    """The last depth's acceptance over the first's. To be read beside the first: a drafter that knows nothing retains everything."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha[..., -1] / alpha[..., 0])


def at_depths(first: int, last: int) -> Measure:
    """Mean acceptance rate of the depths ``first..last``, each with the same weight."""
    return lambda alpha: np.asarray(alpha[..., first : last + 1].mean(-1))


def interval(
    counts: Counts, measure: Measure, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Interval:
    """A figure of the acceptance rates with its percentile interval over prompts and seeds."""
    values = measure(rates(counts, resamples, seed))
    return Interval(float(values[0]), *_ends(values[1:], level))


def alpha_intervals(counts: Counts, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL) -> list[Interval]:
    """The acceptance rate of every depth with its interval."""
    values = rates(counts, resamples, seed)
    return [Interval(float(column[0]), *_ends(column[1:], level)) for column in values.T]


def difference(
    counts: Counts, base: Counts, measure: Measure, resamples: int = RESAMPLES, seed: int = 0, level: float = LEVEL
) -> Comparison:
    """A figure of one drafter minus that of another on the same prompts and seeds, with the two-sided bootstrap p-value of none."""
    assert counts.reached.shape == base.reached.shape
    values = measure(rates(counts, resamples, seed)) - measure(rates(base, resamples, seed))
    resampled = values[1:][np.isfinite(values[1:])]
    if not len(resampled):
        return Comparison(float(values[0]), float("nan"), float("nan"), float("nan"))
    # The data as observed count as one more resample, so that p is never 0 (Davison and Hinkley 1997, section 4.2).
    tail = min((resampled <= 0).sum(), (resampled >= 0).sum()) + 1
    return Comparison(
        float(values[0]), *_ends(resampled, level), p_value=float(min(1.0, 2 * tail / (len(resampled) + 1)))
    )


def _ends(resampled: Floats, level: float) -> tuple[float, float]:
    defined = resampled[np.isfinite(resampled)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
