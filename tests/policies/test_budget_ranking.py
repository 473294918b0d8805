"""A budget that the requests of a batch share: by brute force over all of them, and at the rate that steps reach."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from draftgauge.policies.base import Signal
from draftgauge.policies.batch import Opening
from draftgauge.policies.budget_ranking import KEEPS, BudgetRanking
from draftgauge.policies.shared_budget import SharedBudget
from draftgauge.policies.stopping import ThroughputStopping
from linear_costs import LinearCosts
from two_source_numbers import GAMMA_MAX, random_numbers

BATCH = 4
SLOTS = range(BATCH)


class Costs:
    """Passes of which every further token costs more than the one before."""

    gamma_max = 3
    contexts = (0, 100)

    def verify_seconds(self, batch: int, tokens: ArrayLike, context: int) -> NDArray[np.float64]:
        return 1 + 0.01 * np.asarray(tokens, np.float64) ** 2

    def draft_seconds(self, batch: ArrayLike, tokens: ArrayLike, context: int) -> NDArray[np.float64]:
        return 0.1 + 0.05 * np.asarray(tokens, np.float64)

    def onward_seconds(self, batch: ArrayLike, context: int) -> NDArray[np.float64]:
        return 0.05 + 0.03 * np.asarray(batch, np.float64)

    def asking_seconds(self, batch: ArrayLike) -> NDArray[np.float64]:
        return 0.01 * np.asarray(batch, np.float64)

    def step_seconds(self, batch: ArrayLike) -> NDArray[np.float64]:
        return 0.2 + 0.0 * np.asarray(batch, np.float64)


COSTS = Costs()


def some_of(slots: range) -> list[tuple[int, ...]]:
    """All sets of slots."""
    return [chosen for count in range(len(slots) + 1) for chosen in itertools.combinations(slots, count)]


@pytest.mark.parametrize("seed", range(20))
def test_those_requests_draft_on_whose_tokens_pay_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranking = BudgetRanking(COSTS, BATCH)
    ranking.begin(BATCH, 40)
    planned = BATCH
    for depth in range(3):
        chances = dict(zip(SLOTS, rng.random(BATCH).tolist(), strict=True))
        worths = {}
        for chosen in some_of(SLOTS):
            count = len(chosen)
            drafting = COSTS.onward_seconds(count, 0) if depth else COSTS.draft_seconds(count, count, 0)
            more = COSTS.verify_seconds(BATCH, planned + count, 0) - COSTS.verify_seconds(BATCH, planned, 0)
            seconds = float(drafting + COSTS.asking_seconds(count) + more) if chosen else 0.0
            worths[chosen] = sum(chances[slot] for slot in chosen) - ranking.rate * seconds
        found = ranking.admitted(chances, None if depth else dict.fromkeys(SLOTS, 1))
        assert tuple(found) == max(worths, key=worths.__getitem__)
        planned += len(found)


@pytest.mark.parametrize("seed", range(20))
def test_those_tokens_are_verified_that_pay_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranking = BudgetRanking(COSTS, BATCH)
    ranking.begin(BATCH, 40)
    stands = {slot: np.cumprod(rng.random(int(rng.integers(0, 4)))).tolist() for slot in SLOTS}
    worths = {}
    for counts in itertools.product(*(range(len(stands[slot]) + 1) for slot in SLOTS)):
        gain = sum(sum(stands[slot][:count]) for slot, count in zip(SLOTS, counts, strict=True))
        worths[counts] = gain - ranking.rate * float(COSTS.verify_seconds(BATCH, BATCH + sum(counts), 0))
    found = ranking.verified(stands)
    assert tuple(found[slot] for slot in SLOTS) == max(worths, key=worths.__getitem__)


def test_the_rate_is_what_steps_reach_with_all_that_they_spend() -> None:
    ranking = BudgetRanking(COSTS, 2)
    rest = float(COSTS.step_seconds(2))
    begun = float(COSTS.verify_seconds(2, 2, 0)) + rest  # a step without drafts
    assert ranking.rate == pytest.approx(2 / begun)
    ranking.begin(2, 40)
    assert ranking.admitted({0: 0.9, 1: 0.8}, {0: 1, 1: 2}) == [0, 1]
    assert ranking.verified({0: [0.9], 1: [0.8]}) == {0: 1, 1: 1}
    for tokens in (2, 1):
        ranking.committed(tokens)
    drafting = float(COSTS.draft_seconds(2, 3, 0) + COSTS.asking_seconds(2))
    spent = rest + drafting + float(COSTS.verify_seconds(2, 4, 0))
    assert ranking.rate == pytest.approx((KEEPS * 2 + 3) / (KEEPS * begun + spent))


def test_a_request_is_ranked_by_the_chance_that_all_of_its_tokens_would_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranked: list[dict[int, float]] = []
    policies = [ThroughputStopping(random_numbers(3).stopping, GAMMA_MAX, LinearCosts()) for _ in range(3)]
    budget, alone = SharedBudget(policies[:2], COSTS), policies[2]

    def all_of_them(ranking: BudgetRanking, chances: dict[int, float], backlog: object) -> list[int]:
        ranked.append(chances)
        return sorted(chances)

    monkeypatch.setattr(BudgetRanking, "admitted", all_of_them)
    for slot in (0, 1):
        budget.begin(slot, [1, 2, 1])
    alone.read([1, 2, 1])
    alone.limit()
    budget.first(Opening({0: 3, 1: 3}, {0: 1, 1: 1}, 40))
    for depth in (1, 2):
        signal = Signal(depth, 0.4, float("nan"), float("nan"), 2)
        budget.onward({0: signal, 1: signal})
        alone.keep_drafting(signal)
        worth = alone.chances.all_stand * alone.chances.next_stands
        assert ranked[depth] == {0: pytest.approx(worth), 1: pytest.approx(worth)}
    assert alone.chances.all_stand < 0.99
