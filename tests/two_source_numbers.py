"""Made-up numbers of the rule of two sources."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftgauge.policies.acceptance_model import AGREEMENTS, HazardShared, NextShared, StoppingNumbers
from draftgauge.policies.suffix import ORDER
from draftgauge.policies.tail_model import TailByOrder, TailNumbers, TailShared
from draftgauge.policies.two_source_rule import TwoSourceNumbers

GAMMA_MAX = 6


def random_numbers(seed: int, scale: float = 0.4, **changes: object) -> TwoSourceNumbers:
    """Models that depend on everything they read."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> tuple:
        return tuple(map(tuple, (scale * rng.standard_normal(shape)).tolist()))

    count = 24
    chances = np.sort(rng.random((count, GAMMA_MAX)), axis=1)[:, ::-1]
    accepted = rng.integers(0, GAMMA_MAX + 1, count)
    tails = tuple(
        tuple(
            tuple(np.sort(rng.random(int(rng.integers(0, GAMMA_MAX - depth + 1))))[::-1].round(4).tolist())
            for depth in range(GAMMA_MAX + 1)
        )
        for _ in range(count)
    )
    runs = tuple(
        tuple(int(rng.integers(0, GAMMA_MAX - depth + 1)) for depth in range(GAMMA_MAX + 1)) for _ in range(count)
    )
    stopping = StoppingNumbers(
        hazard_by_agreement=weights(len(AGREEMENTS), 3),
        hazard=weights(1, len(HazardShared._fields))[0],
        next_by_order=weights(ORDER + 1, 4),
        next=weights(1, len(NextShared._fields))[0],
        tokens=(1, 2, 3),
        token_hazard=(0.1, -0.2, 0.3),
        token_next=(-0.1, 0.2, 0.1),
        onward=tuple(rng.uniform(0.3, 0.9, GAMMA_MAX).tolist()),
        chances=tuple(map(tuple, chances.round(4).tolist())),
        accepted=tuple(accepted.tolist()),
        horizon=int(rng.integers(1, 5)),
    )
    shared = weights(1, len(TailShared._fields))[0]
    tail = TailNumbers(weights(ORDER, len(TailByOrder._fields)), shared, (0, 2, 5), (0.3, -0.8, 0.5), (-0.6, 0.2, 0.9))
    numbers = TwoSourceNumbers(stopping, tail, kappa=float(rng.uniform(0.2, 1.5)), tails=tails, runs=runs)
    numbers = replace(numbers, instead=tuple(rng.normal((0.3, 0.8, -0.4), 0.5).tolist()))
    return replace(numbers, **changes)
