"""Cost curves from few samples of a machine that is busy with other work."""

from __future__ import annotations

import numpy as np
import pytest

from draftgauge.core.signals import NO_SIGNALS, SignalName
from draftgauge.decoding.fitted_costs import fitted_costs
from draftgauge.decoding.stopwatch import Sample

LENGTHS = (0, 1, 2, 3)
WITH_SIGNALS = [
    Sample(gamma, frozenset({name}), 1, 0.00021 * gamma, 0.0005, 0.0005 + 0.00021 * gamma)
    for gamma in LENGTHS[1:]
    for name in SignalName
]


def disturbed(rng: np.random.Generator) -> list[Sample]:
    """Steps of half a millisecond, some of which wait for another process."""
    samples = []
    for gamma in LENGTHS:
        for repeats in (False, True):
            for _ in range(int(rng.integers(2, 5))):
                slow = 1.0 + (3.0 * rng.random() if not gamma and not repeats else 0.2 * rng.random())
                verify, draft = 0.0005 * slow, 0.0002 * gamma * slow
                samples.append(Sample(gamma, NO_SIGNALS, 1, draft, verify, draft + verify, repeats))
    return samples + WITH_SIGNALS


@pytest.mark.parametrize("seed", range(40))
def test_repeating_a_step_never_saves_all_of_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fit = fitted_costs([disturbed(rng), disturbed(rng)])
    assert max(fit.repeat.plain, fit.repeat.proposing) < fit.verify[1].min()


def test_what_a_busy_machine_says_is_more_than_a_step() -> None:
    """Else the test above shows nothing."""
    slow = [Sample(0, NO_SIGNALS, 1, 0.0, 0.0016, 0.0016, False)] * 3
    fast = [Sample(0, NO_SIGNALS, 1, 0.0, 0.0005, 0.0005, True)] * 3
    drafts = [Sample(1, NO_SIGNALS, 1, 0.0002, 0.0005, 0.0007, repeats) for repeats in (False, True)] * 3
    assert fitted_costs([[*slow, *fast, *drafts, *WITH_SIGNALS[: len(SignalName)]]]).repeat.plain == pytest.approx(
        0.5 * 0.0005
    )
