"""Tests of a difference that was measured with several training seeds on the same prompts: both are samples.

Seeds and prompts are crossed random effects: ``d[s, p] = mean + seed[s] + prompt[p] + rest[s, p]``. The mean's variance
is ``(MS_s + MS_p - MS_rest) / (S P)`` of the mean squares of a two-way analysis of variance. Its degrees of freedom are
Satterthwaite's (1946); this is the F of Clark (1973) for crossed subjects and items. Few seeds are few degrees of
freedom, which a bootstrap over them does not know.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from draftgauge.judging.statistics.bootstrap import LEVEL, all_signs

MOST_FLIPPED = 16  # seeds whose signs are all enumerated


class EffectTest(NamedTuple):
    """A mean difference over seeds and prompts with its 95% interval, and two two-sided p-values of there being none.

    Attributes:
        p_value: seeds and prompts as crossed random effects.
        p_seeds: from flipping the signs of the seeds' means; at least ``2 / 2**seeds``.
    """

    estimate: float
    low: float
    high: float
    p_value: float
    p_seeds: float
    seeds: int


def crossed_effects(differences: ArrayLike) -> EffectTest:
    """Test that the mean of differences is 0.

    Args:
        differences: ``[seeds, prompts]``.

    Returns:
        NaN for interval and p-values where there are fewer than two seeds or prompts: how much they vary is unknown.
    """
    d = np.asarray(differences, np.float64)
    seeds, prompts = d.shape
    mean = float(d.mean())
    if seeds < 2 or prompts < 2:
        return EffectTest(mean, float("nan"), float("nan"), float("nan"), float("nan"), seeds)
    by_seed, by_prompt = d.mean(1), d.mean(0)
    rest = d - by_seed[:, None] - by_prompt + mean
    squares = np.array([prompts * by_seed.var(ddof=1), seeds * by_prompt.var(ddof=1), 0.0])
    freedom = np.array([seeds - 1, prompts - 1, (seeds - 1) * (prompts - 1)])
    squares[2] = (rest**2).sum() / freedom[2]
    # Never below what either effect alone makes it: an estimated component may come out negative.
    total = max(squares[0] + squares[1] - squares[2], squares[0], squares[1])
    p_seeds = sign_flip(by_seed)
    if total <= 0:
        return EffectTest(mean, mean, mean, 1.0 if mean == 0 else 0.0, p_seeds, seeds)
    degrees = max(1.0, total**2 / float((squares**2 / freedom).sum()))
    error = (total / (seeds * prompts)) ** 0.5
    half = float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * error
    return EffectTest(mean, mean - half, mean + half, float(2 * stats.t.sf(abs(mean) / error, degrees)), p_seeds, seeds)


def sign_flip(values: ArrayLike) -> float:
    """Two-sided p-value that the mean of values is 0, by flipping their signs in all ways (Fisher 1935); exact."""
    x = np.asarray(values, np.float64)
    assert 0 < len(x) <= MOST_FLIPPED
    flipped = np.abs(all_signs(len(x)) @ x)
    return float((flipped >= abs(x.sum()) - 1e-12 * np.abs(x).sum()).mean())
