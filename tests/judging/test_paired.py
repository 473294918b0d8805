"""Intervals: reproducible, paired, of the right coverage, and NaN where there is nothing to say."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics import bootstrap
from draftgauge.judging.statistics.bootstrap import Comparison, draw_counts, holm, ratio_interval


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
