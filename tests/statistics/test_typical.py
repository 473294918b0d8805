"""What timed work typically takes."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.statistics.typical import typical


def test_the_mean_of_skewed_times_counts() -> None:
    samples = np.random.default_rng(0).exponential(1.0, 2000)
    assert typical(samples.tolist()) == pytest.approx(1.0, abs=0.08)
    assert float(np.median(samples)) < 0.75


def test_one_stall_spoils_nothing() -> None:
    assert typical([1.0] * 40 + [1000.0]) == 1.0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_samples(count: int) -> None:
    assert typical([2.0] * count) == 2.0


def test_each_group_is_from_all_over_the_time() -> None:
    assert typical([1.0] * 5 + [3.0] * 10) == pytest.approx(7 / 3)
