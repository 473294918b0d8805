"""Crossed random effects: calibrated where seeds and prompts both vary, and known answers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from draftgauge.studies.kvshot.verdicts import crossed_effects, sign_flip


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
