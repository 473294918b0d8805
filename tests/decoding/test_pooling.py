"""Costs of noisy steps: what is drawn to a line and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.decoding.pooling import Pooled, Timed, pool, saved_by_repeating, uncertainty

LONGEST, SAMPLES, NOISE = 8, 12, 0.4


def timed(rng: np.random.Generator, seconds: np.ndarray) -> Timed:
    """Noisy steps of every length, and three times as many that draft nothing."""
    lengths = rng.permutation(np.concatenate([np.repeat(np.arange(LONGEST + 1), SAMPLES), np.zeros(2 * SAMPLES, int)]))
    return Timed(lengths, seconds[lengths] * rng.lognormal(0.0, NOISE, len(lengths)))


@pytest.fixture
def line() -> np.ndarray:
    """Seconds by draft length."""
    return 14.0 + np.arange(LONGEST + 1)


def test_a_single_token_is_not_drawn_to_the_line_of_longer_passes(line: np.ndarray) -> None:
    line[0] = 12.0
    estimates = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        estimates.append(pool([timed(rng, line), timed(rng, line + 2.0)], 0, LONGEST).quartiles[1, 0])
    errors = np.mean(estimates, axis=0) / line - 1
    assert np.abs(errors).max() < 0.03


def test_lengths_that_lie_on_a_line_help_each_other(line: np.ndarray) -> None:
    pooled, medians = [], []
    for seed in range(40):
        steps = timed(np.random.default_rng(seed), line)
        pooled.append(pool([steps], 0, LONGEST).quartiles[1, 0, 1:])
        medians.append([np.median(steps.seconds[steps.lengths == length]) for length in range(1, LONGEST + 1)])
    spread = [float(np.mean((np.asarray(values) / line[1:] - 1) ** 2)) for values in (pooled, medians)]
    assert spread[0] < 0.6 * spread[1]


def test_a_length_that_was_timed_often_stands_for_itself(line: np.ndarray) -> None:
    """A processor takes 4 tokens as fast as 3: long lengths, of few samples, do not draw that back to the line."""
    line[3] = line[2]
    lengths = np.concatenate([np.repeat(np.arange(7), 80), np.repeat(np.arange(7, LONGEST + 1), 8)])
    estimates = []
    for seed in range(40):
        seconds = line[lengths] * np.random.default_rng(seed).lognormal(0.0, 0.08, len(lengths))
        estimates.append(pool([Timed(lengths, seconds)], 0, LONGEST).quartiles[1, 0, 1:7])
    away = np.mean(estimates, axis=0) - line[1:7]
    assert np.abs(away).max() < 0.2


def test_no_context_is_given_less_than_its_fastest_sample() -> None:
    """A stall in another context, of a few samples, tilts the lines: the middle one's would go below nothing."""
    lengths = np.arange(4)
    slow = Timed(np.tile(lengths, 2), np.array([1.0, 9.0, 30.0, 90.0] * 2))
    fast = Timed(np.tile(lengths, 2), np.array([1.0, 1.1, 1.2, 1.3] * 2))
    for contexts in ([fast, slow, fast], [slow, fast, slow]):
        pooled = pool(contexts, 0, 3)
        for row, timed in enumerate(contexts):
            assert pooled.quartiles[:, row].min() >= timed.seconds.min()


def test_advice_is_open_where_another_length_may_be_faster() -> None:
    """A drafted token adds 0.7 of a step: worth it or not at a chance of 0.7, as far as the errors do not tell."""
    seconds = np.array([1.0, 1.7])

    def undecided(error: float) -> tuple[float, ...]:
        steps = Pooled(np.broadcast_to(seconds, (3, 1, 2)), error * seconds, np.array([9, 9]))
        return uncertainty(steps, 1.0).undecided

    assert undecided(0.005) == ()
    assert undecided(0.01) == (0.7,)
    assert undecided(0.03) == (0.6, 0.7, 0.8)


def test_what_repeating_saves_is_told_from_noise_and_is_never_most_of_a_pass() -> None:
    before = np.random.default_rng(0).normal(10.0, 1.0, 20).tolist()
    assert saved_by_repeating(before, [x - 0.2 for x in before], 10.0) == 0.0
    assert saved_by_repeating(before, [x - 3.0 for x in before], 10.0) == pytest.approx(3.0)
    assert saved_by_repeating(before, [x - 8.0 for x in before], 10.0) == 5.0
    assert saved_by_repeating(before, [], 10.0) == saved_by_repeating([], before, 10.0) == 0.0
