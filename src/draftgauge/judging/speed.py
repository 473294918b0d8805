"""How fast something decodes, by conversation, and how much faster than something else on the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.judging.statistics.bootstrap import (
    RESAMPLES,
    Comparison,
    Floats,
    Interval,
    bootstrap_p_value,
    exchange_p_value,
    interval_of,
    ratios,
)
from draftgauge.traces.trace import sum_by_prompt

LEVEL = 0.01  # speeds that differ by less are level


class Ratio(NamedTuple):
    """One speed over another with its 95% interval, and the two-sided p-value of there being no difference."""

    estimate: float
    low: float
    high: float
    p_value: float

    @property
    def gain(self) -> Comparison:
        return Comparison(self.estimate - 1, self.low - 1, self.high - 1, self.p_value)

    @property
    def level(self) -> bool:
        """Whether it is as fast as the other: 1% slower at most, or with an interval that reaches 1."""
        return self.gain.estimate >= -LEVEL or self.gain.high >= 0


@dataclass(frozen=True, eq=False)
class Speed:
    """Tokens ``[n]`` and what they took ``[n]``, seconds or steps, of the same conversations in the same order."""

    tokens: ArrayLike
    seconds: ArrayLike
    _drawn: dict[int, tuple[float, Floats]] = field(default_factory=dict, repr=False)  # by resamples

    @classmethod
    def by(cls, conversation: NDArray[np.int64], tokens: ArrayLike, seconds: ArrayLike) -> Speed:
        """Of prompts ``[prompts]``, summed by their conversation: its turns are not independent samples."""
        numbers = np.unique(conversation, return_inverse=True)[1].reshape(-1)
        return cls(sum_by_prompt(numbers, tokens), sum_by_prompt(numbers, seconds))

    @property
    def estimate(self) -> float:
        """Tokens over seconds; NaN where nothing was timed."""
        seconds = float(np.sum(self.seconds))
        return float(np.sum(self.tokens)) / seconds if seconds else float("nan")

    def interval(self, resamples: int = RESAMPLES) -> Interval:
        return interval_of(*self._ratios(resamples))

    def over(self, other: Speed, resamples: int = RESAMPLES) -> Ratio:
        """This speed over another, paired by conversation; NaN for the interval of a single one."""
        (ratio, drawn), (base, base_drawn) = self._ratios(resamples), other._ratios(resamples)
        with np.errstate(divide="ignore", invalid="ignore"):
            estimate, quotients = float(np.float64(ratio) / base), drawn / base_drawn
        exact = exchange_p_value((self.tokens, self.seconds), (other.tokens, other.seconds))
        p_value = bootstrap_p_value(quotients - 1) if exact is None else exact
        return Ratio(*interval_of(estimate, quotients), p_value)

    def _ratios(self, resamples: int) -> tuple[float, Floats]:
        if resamples not in self._drawn:
            self._drawn[resamples] = ratios(self.tokens, self.seconds, resamples)
        return self._drawn[resamples]
