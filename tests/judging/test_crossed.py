"""Intervals over prompts and seeds: estimates, coverage, pairing, and measures on known rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftgauge.judging.statistics.crossed import (
    Counts,
    alpha_intervals,
    at_depths,
    difference,
    interval,
    mean_accepted,
    rates,
    retention,
)


def drawn(
    rng: np.random.Generator, alpha: list[float], seeds: int = 3, prompts: int = 40, spread: float = 0.0
) -> Counts:
    """Counts of 50 drafts a prompt whose acceptance differs by ``spread`` between prompts and between seeds."""
    shift = rng.normal(0, spread, (seeds, 1)) + rng.normal(0, spread, (1, prompts))
    reached, accepted = [], []
    here = np.full((seeds, prompts), 50)
    for value in alpha:
        reached.append(here)
        here = rng.binomial(here, np.clip(value + shift, 0, 1))
        accepted.append(here)
    return Counts(np.stack(reached, -1), np.stack(accepted, -1))


def test_measures() -> None:
    alpha = np.array([0.5, 0.4, 0.2])
    assert float(mean_accepted(alpha)) == pytest.approx(1 + 0.5 + 0.2 + 0.04)
    assert float(retention(alpha)) == pytest.approx(0.4)
    assert float(at_depths(1, 2)(alpha)) == pytest.approx(0.3)


def test_a_depth_that_nothing_reached_adds_nothing() -> None:
    counts = Counts.of([[4, 0, 0]], [[0, 0, 0]])
    assert np.isnan(rates(counts, 10)[0, 1:]).all()
    assert interval(counts, mean_accepted).estimate == 1.0
    assert math.isnan(interval(counts, retention).estimate)
    assert math.isnan(alpha_intervals(counts)[2].low)


def test_estimates_are_ratios_of_sums_over_seeds_and_prompts() -> None:
    counts = Counts.of([[[4, 2], [6, 1]], [[4, 4], [6, 3]]], [[[2, 1], [1, 1]], [[4, 0], [3, 2]]])
    alphas = [a.estimate for a in alpha_intervals(counts)]
    assert alphas == pytest.approx([10 / 20, 4 / 10])


def test_coverage_over_prompts_and_seeds() -> None:
    covered = 0
    for seed in range(120):
        counts = drawn(np.random.default_rng(seed), [0.6], seeds=8, prompts=20, spread=0.05)
        found = alpha_intervals(counts, resamples=400)[0]
        covered += found.low <= 0.6 <= found.high
    assert 0.88 <= covered / 120 <= 1.0


def test_seeds_that_differ_widen_the_interval() -> None:
    one = drawn(np.random.default_rng(0), [0.5], seeds=1)
    other = Counts(one.reached, np.minimum(one.reached, one.accepted + 10))
    alike, apart = Counts.stack([one, one]), Counts.stack([one, other])
    narrow, wide = (interval(counts, mean_accepted) for counts in (alike, apart))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_a_paired_difference_forgets_what_both_share() -> None:
    rng = np.random.default_rng(0)
    base = drawn(rng, [0.5], spread=0.2)
    better = Counts(base.reached, np.minimum(base.reached, base.accepted + 1))
    found = difference(better, base, mean_accepted)
    alone = interval(better, mean_accepted)
    assert found.low > 0
    assert found.high - found.low < 0.2 * (alone.high - alone.low)
    same = difference(base, base, mean_accepted)
    assert same == (0.0, 0.0, 0.0)


def test_one_seed_has_an_interval_over_prompts_and_one_prompt_has_none() -> None:
    counts = drawn(np.random.default_rng(0), [0.5], seeds=1, prompts=20)
    found = interval(counts, mean_accepted)
    assert found.low < found.estimate < found.high
    alone = interval(drawn(np.random.default_rng(0), [0.5], seeds=4, prompts=1), mean_accepted)
    assert np.isnan([alone.low, alone.high]).all()
