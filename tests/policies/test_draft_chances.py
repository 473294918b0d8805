"""One draft token by token against many positions at once: the same models of acceptance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftgauge.policies.acceptance_model import LEAST_DOUBT, AcceptanceModels, State
from draftgauge.policies.draft_chances import DraftChances
from draftgauge.policies.suffix import ORDER
from two_source_numbers import GAMMA_MAX, random_numbers


@pytest.mark.parametrize("seed", range(4))
def test_the_chances_of_a_draft_are_those_of_the_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    models = AcceptanceModels(random_numbers(seed).stopping)
    models.hazard_bias, models.next_bias = 0.3, -0.2
    chances = DraftChances(models, GAMMA_MAX)
    for _ in range(50):
        habit, run = float(rng.uniform(-1, 1)), math.log1p(int(rng.integers(0, 9)))
        token, order = int(rng.integers(-1, 6)), int(rng.integers(0, ORDER + 1))
        state = _first(token, order, habit, run)
        assert chances.begin(token, order, habit, run) == pytest.approx(models.all_next_stand(state)[0])
        stand = 1.0
        for depth in range(1, GAMMA_MAX + 1):
            agrees, before = bool(rng.random() < 0.5), order
            token, order = int(rng.integers(0, 6)), int(rng.integers(0, ORDER + 1))
            confidence = float(rng.choice([0.0, 1.0, rng.random()]))
            log = math.log(max(confidence, 1e-6))
            values = (token, before if agrees else -before, order, log, math.log(LEAST_DOUBT - log))
            state = state.drafted(*(np.array([value]) for value in values))
            stand *= models.all_stand(state)[0]
            worth = chances.drafted(token, agrees, order, confidence)
            assert worth == pytest.approx(stand * models.all_next_stand(state)[0])
            assert chances.stands == pytest.approx(models.all_stand(state)[0])
            assert (chances.depth, chances.all_stand) == (depth, pytest.approx(stand))
            assert (chances.agreed, chances.disagreed) == (state.agreed[0], state.disagreed[0])


def _first(token: int, order: int, habit: float, run: float) -> State:
    none, zero = np.zeros(1), np.zeros(1, np.int64)
    return State(
        0, np.array([token]), zero, np.array([order]), none, none, none, none, none, zero, zero,
        np.array([habit]), np.array([run]),
    )  # fmt: skip
