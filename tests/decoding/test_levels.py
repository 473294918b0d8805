"""Timed steps without the machine's drift."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.core.signals import NO_SIGNALS, SignalName
from draftgauge.decoding.levels import NEIGHBOURS, steadied
from draftgauge.decoding.stopwatch import Sample

LENGTHS = 5


def samples(speed: np.ndarray, rng: np.random.Generator) -> list[Sample]:
    """Steps of random lengths, each part of which takes so many times as long."""
    made = []
    for times in speed:
        gamma = int(rng.integers(1, LENGTHS + 1))
        made.append(Sample(gamma, NO_SIGNALS, 1, times * gamma, times * (10.0 + gamma), times * (12.0 + 2 * gamma)))
    return made


def test_a_drift_is_taken_out_of_all_parts() -> None:
    rng = np.random.default_rng(0)
    steady = steadied(samples(np.repeat([1.0, 1.5, 0.8, 1.0, 1.3], 60), rng))
    verify = {length: [s.verify for s in steady if s.gamma == length] for length in range(1, LENGTHS + 1)}
    draft = [s.draft / s.gamma for s in steady]
    for length, seconds in verify.items():
        assert np.subtract(*np.percentile(seconds, (90, 10))) < 0.1 * length + 0.5
    assert np.subtract(*np.percentile(draft, (90, 10))) < 0.1
    assert np.median(draft) == pytest.approx(1.0, rel=0.1)


def test_what_one_step_takes_longer_stays_with_it() -> None:
    speed = np.ones(80)
    speed[40] = 3.0
    made = samples(speed, np.random.default_rng(1))
    assert steadied(made) == made


def test_what_steps_of_another_kind_take_is_no_drift() -> None:
    """Those of a length, those that read signals and those that repeat the step before, one kind after the other."""
    confidence = frozenset({SignalName.CONFIDENCE})
    plain = Sample(2, NO_SIGNALS, 1, 2.0, 10.0, 14.0)
    longer, looking = Sample(5, NO_SIGNALS, 1, 5.0, 13.0, 20.0), Sample(2, confidence, 1, 3.0, 10.0, 15.0)
    repeating = Sample(2, NO_SIGNALS, 1, 2.0, 8.0, 12.0, True)
    made = [sample for kind in (plain, longer, looking, repeating) for sample in [kind] * 30]
    assert steadied(made) == made


def test_few_samples_are_left_as_they_are() -> None:
    made = samples(np.linspace(1.0, 2.0, 2 * NEIGHBOURS - 1), np.random.default_rng(2))
    assert steadied(made) == made
