"""Intervals over prompts and seeds at once, for counts of reached and accepted drafts; no torch.

Every training seed is evaluated on the same prompts, so seeds and prompts are crossed. A resample draws both
independently, with replacement, and weighs every (seed, prompt) cell by the product of how often each was drawn. This
is the pigeonhole bootstrap (Owen 2007, "The pigeonhole bootstrap"), mildly conservative for the interaction of both.
Few seeds carry little information on their own spread. With three, the part of the interval that comes from seeds is
too narrow by a factor of about sqrt(2/3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.judging.statistics.bootstrap import Interval, columns, drawn, interval_of

RESAMPLES = 4000

Floats = NDArray[np.float64]
Measure = Callable[[Floats], Floats]
"""A function from acceptance rates ``[..., depths]`` to one figure ``[...]``."""


@dataclass(frozen=True)
class Counts:
    """How often each depth of a draft was reached and accepted; or any other sums and what they are sums over.

    Attributes:
        reached: ``[seeds, prompts, depths]`` drafts whose earlier tokens were all accepted.
        accepted: ``[seeds, prompts, depths]`` those of them whose token at this depth was accepted too.
    """

    reached: NDArray[Any]
    accepted: NDArray[Any]

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
        return Counts(np.concatenate([p.reached for p in parts]), np.concatenate([p.accepted for p in parts]))

    def prompts(self, chosen: NDArray[np.bool_]) -> Counts:
        """Some of the prompts only, by a mask ``[prompts]``."""
        return Counts(self.reached[:, chosen], self.accepted[:, chosen])


def rates(counts: Counts, resamples: int = RESAMPLES) -> Floats:
    """Acceptance rates ``[1 + resamples, depths]``: of all the data first, then of every resample; NaN where no draft
    got so deep.

    The shape decides what is drawn, so two drafters with the same seeds and prompts are resampled alike: paired.
    """
    seeds, prompts, _ = counts.reached.shape
    by_seed, by_prompt = _weights(seeds, prompts, resamples)
    above, below = (
        np.einsum("rs,rn,snk->rk", by_seed, by_prompt, values.astype(np.float64), optimize=True)
        for values in (counts.accepted, counts.reached)
    )
    alpha: Floats = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return alpha


@lru_cache(maxsize=8)
def _weights(seeds: int, prompts: int, resamples: int) -> tuple[Floats, Floats]:
    """How often each seed and each prompt was drawn ``[1 + resamples, count]``: all the data, once each, come first."""
    rng = np.random.default_rng(0)
    drawn_seeds, drawn_prompts = (drawn(rng, count, resamples) for count in (seeds, prompts))
    return np.vstack([np.ones(seeds), drawn_seeds]), np.vstack([np.ones(prompts), drawn_prompts])


def mean_accepted(alpha: Floats) -> Floats:
    """MAT, mean accepted tokens a step with the target's own: ``1 + sum_k prod_{j<=k} alpha_j`` (KVShot, section 3).

    A depth that no draft reached adds nothing, as the product before it is zero.
    """
    return np.asarray(1 + np.cumprod(np.nan_to_num(alpha), axis=-1).sum(-1))


def retention(alpha: Floats) -> Floats:
    """The last depth's acceptance over the first's; read it beside the first, as knowing nothing retains all."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(alpha[..., -1] / alpha[..., 0])


def at_depths(first: int, last: int) -> Measure:
    """Mean acceptance rate of the depths ``first..last``, each with the same weight."""
    return lambda alpha: np.asarray(alpha[..., first : last + 1].mean(-1))


def interval(counts: Counts, measure: Measure) -> Interval:
    """A figure of the acceptance rates with its percentile interval over prompts and seeds."""
    return _interval_of(measure(rates(counts)), counts)


def alpha_intervals(counts: Counts, resamples: int = RESAMPLES) -> list[Interval]:
    return [_interval_of(column, counts) for column in rates(counts, resamples).T]


def depth_rows(forced: Counts, agreed: Counts, survived: Counts) -> Iterator[dict[str, Any]]:
    """A row a depth, from 1: ``alpha``, ``agreement`` and ``survival``, each with ``_low`` and ``_high``."""
    intervals = map(alpha_intervals, (forced, agreed, survived))
    for depth, (alpha, agreement, survival) in enumerate(zip(*intervals, strict=True), start=1):
        row = {"depth": depth} | columns("alpha", alpha)
        yield row | columns("agreement", agreement) | columns("survival", survival)


def difference(counts: Counts, base: Counts, measure: Measure) -> Interval:
    """A figure of one drafter minus that of another on the same prompts and seeds, with its percentile interval."""
    assert counts.reached.shape == base.reached.shape
    return _interval_of(measure(rates(counts)) - measure(rates(base)), counts)


def _interval_of(values: Floats, counts: Counts) -> Interval:
    """Of an estimate and its resamples ``[1 + resamples]``; a single prompt says nothing of how prompts differ."""
    return interval_of(float(values[0]), values[1:] if counts.reached.shape[1] > 1 else np.empty(0))
