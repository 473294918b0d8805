"""Intervals over prompts and seeds: estimates, coverage, pairing, and NaN where there is nothing to say."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics import bootstrap
from draftgauge.judging.statistics.bootstrap import Comparison, draw_counts, holm, ratio_interval
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
from draftgauge.studies.kvshot.verdicts import crossed_effects, sign_flip


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


def test_the_sign_flip_is_exact() -> None:
    assert sign_flip([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip([1.0, 2.0, -3.0]) == 1.0
    assert sign_flip([1.0] * 5) == 2 / 32
    assert sign_flip([0.1, 0.2, 0.3, 0.4, -0.05]) == 4 / 32


def test_prompts_alone_give_the_paired_t_test() -> None:
    """Where all seeds agree, they add nothing to the variance of the prompts."""
    prompts = np.random.default_rng(0).normal(0.3, 1, 30)
    found = crossed_effects(np.tile(prompts, (4, 1)))
    expected = stats.ttest_1samp(prompts, 0)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.low == pytest.approx(expected.confidence_interval().low)
    assert found.p_seeds == 2 / 16


def test_it_is_wrong_in_one_case_of_twenty() -> None:
    rng = np.random.default_rng(1)
    cases, seeds, prompts = 2000, 5, 24
    data = rng.normal(0, 0.05, (cases, seeds, 1)) + rng.normal(0, 0.1, (cases, 1, prompts))
    data = data + rng.normal(0, 0.1, (cases, seeds, prompts))
    wrong = np.mean([crossed_effects(case).p_value < 0.05 for case in data])
    assert 0.03 < wrong < 0.065


def test_one_seed_says_nothing_about_seeds() -> None:
    found = crossed_effects(np.ones((1, 5)))
    assert found.estimate == 1.0
    assert np.isnan([found.low, found.p_value, found.p_seeds]).all()


def test_two_seeds_and_two_prompts_by_hand() -> None:
    """Mean squares of 9, 4 and 1: a variance of 12 / 4, at 12 squared / (81 + 16 + 1) degrees of freedom."""
    found = crossed_effects([[1.0, 2.0], [3.0, 6.0]])
    assert found.estimate == 3.0
    assert found.p_value == pytest.approx(2 * stats.t.sf(3 / 3**0.5, 144 / 98))
    assert found.high - 3.0 == pytest.approx(stats.t.ppf(0.975, 144 / 98) * 3**0.5)


def paired_gain(tokens, seconds, base_tokens, base_seconds, resamples: int = 2000) -> Comparison:
    return Speed(tokens, seconds).over(Speed(base_tokens, base_seconds), resamples).gain


def sample(seed: int, prompts: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds of prompts whose speed is 50 tokens per second in the whole population."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(20, 200, prompts).astype(float)
    return tokens, tokens / 50 * rng.gamma(20.0, 1 / 20.0, prompts)


def test_coverage_of_a_known_ratio() -> None:
    covered = 0
    for seed in range(300):
        tokens, seconds = sample(seed)
        interval = ratio_interval(tokens, seconds, resamples=1000)
        covered += interval.low <= 50 <= interval.high
    assert 0.90 <= covered / 300 <= 0.98


def test_same_interval_as_scipy() -> None:
    tokens, seconds = sample(1)
    ours = ratio_interval(tokens, seconds, resamples=20_000)
    theirs = stats.bootstrap(
        (tokens, seconds),
        lambda t, s, axis: t.sum(axis) / s.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.05 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.05 * width)


def test_each_resample_draws_as_many_prompts_and_cannot_be_changed() -> None:
    counts = draw_counts(7, 100)
    assert (counts.sum(axis=1) == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        counts[0, 0] = 1


def test_tasks_of_several_sizes_are_drawn_once() -> None:
    kept = [draw_counts(count, 100) for count in range(4, 24)]
    assert all(draw_counts(len(one[0]), 100) is one for one in kept)


def test_many_prompts_are_resampled_in_blocks_with_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(7, 2))
    monkeypatch.setattr(bootstrap, "MOST_KEPT", 7 * 30)
    assert bootstrap.resampled_sums(values, 100) == pytest.approx(draw_counts(7, 100) @ values)


def test_pairing_removes_what_prompts_share() -> None:
    tokens, seconds = sample(4)
    faster = seconds / 1.1  # 10% on every prompt, far less than prompts differ
    gain = paired_gain(tokens, faster, tokens, seconds)
    assert gain == pytest.approx((0.1, 0.1, 0.1, 2 / 2001))
    alone, base = ratio_interval(tokens, faster), ratio_interval(tokens, seconds)
    assert alone.low < base.high
    assert paired_gain(tokens, seconds, tokens, seconds) == (0.0, 0.0, 0.0, 1.0)


def test_p_values_are_even_where_there_is_no_difference() -> None:
    p_values = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(1.0, 0.2, (2, 50))
        p_values.append(paired_gain(a, np.ones(50), b, np.ones(50), resamples=500).p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
    assert np.mean(np.array(p_values) < 0.05) < 0.12


@pytest.mark.parametrize("prompts", [2, 5, 12])
def test_few_prompts_cannot_say_more_than_their_exchanges(prompts: int) -> None:
    tokens, seconds = sample(4, prompts)
    assert paired_gain(tokens, seconds / 1.1, tokens, seconds).p_value == 2 / 2**prompts
    assert paired_gain(tokens, seconds, tokens, seconds).p_value == 1.0


def test_the_p_value_of_few_prompts_is_that_of_all_exchanges() -> None:
    rng = np.random.default_rng(0)
    one, base = rng.normal(1.0, 0.2, (2, 4))
    gains = [
        abs(np.log(np.where(swapped, base, one).sum() / np.where(swapped, one, base).sum()))
        for swapped in product((False, True), repeat=4)
    ]
    expected = np.mean([gain >= gains[0] - 1e-12 for gain in gains])
    assert paired_gain(one, np.ones(4), base, np.ones(4)).p_value == expected
    p_values = []
    for a, b in rng.normal(1.0, 0.2, (2000, 2, 8)):
        p_values.append(paired_gain(a, np.ones(8), b, np.ones(8), resamples=2).p_value)
    assert 0.03 < np.mean(np.array(p_values) <= 0.05) <= 0.06


def test_holm_on_a_case_worked_by_hand() -> None:
    # Sorted: .005 x 4, .01 x 3, .03 x 2 and then .04 x 1, which may not fall below the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.7, 0.8]) == pytest.approx([1.0, 1.0])
    adjusted = holm([float("nan"), 0.02])
    assert np.isnan(adjusted[0])
    assert adjusted[1] == 0.02
    assert holm([]) == []


def test_a_single_prompt_has_no_interval_and_nothing_over_nothing_no_ratio() -> None:
    assert np.isnan(ratio_interval([0, 0], [0, 0])).all()
    for found, estimate in ((ratio_interval([6.0], [2.0]), 3.0), (paired_gain([6.0], [2.0], [6.0], [3.0]), 0.5)):
        assert found.estimate == pytest.approx(estimate)
        assert np.isnan(found[1:]).all()
