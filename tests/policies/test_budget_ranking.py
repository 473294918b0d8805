"""A budget that the requests of a batch share: by brute force over all of them, and at the rate that steps reach."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from draftgauge.policies.base import DecisionSeconds, Signal
from draftgauge.policies.batch import Opening
from draftgauge.policies.budget_ranking import KEEPS, BudgetRanking
from draftgauge.policies.shared_budget import SharedBudget
from draftgauge.policies.stopping import ThroughputStopping, tokens_ahead
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

    def ragged_verify_seconds(self, batch: int, padded: ArrayLike) -> NDArray[np.float64]:
        places = np.asarray(padded, np.float64)
        return np.where(places > 0, 0.06 + 0.01 * places, 0.0)

    def ranking_seconds(self, batch: int, steps: int, ranked: int) -> float:
        return 0.03 * steps + 0.005 * ranked


COSTS = Costs()
DECISION = DecisionSeconds(token=0.01, step=0.02)
AHEAD = [tokens_ahead((0.9, 0.7, 0.5), 3 - drafted, drafted) for drafted in range(3)]
BESIDES = DECISION.token + COSTS.ranking_seconds(BATCH, 0, 1)  # that a drafted token takes


def verifying(counts: Sequence[int], batch: int = BATCH) -> float:
    """Seconds of verifying so many drafted tokens of each request."""
    padded = len(counts) * max(counts) - sum(counts)
    return float(COSTS.verify_seconds(batch, batch + sum(counts), 0) + COSTS.ragged_verify_seconds(batch, padded))


def some_of(slots: Sequence[int]) -> list[tuple[int, ...]]:
    """All sets of slots."""
    return [chosen for count in range(len(slots) + 1) for chosen in itertools.combinations(slots, count)]


def test_the_tokens_ahead_are_those_that_drafts_went_on_to() -> None:
    assert [pytest.approx([1, 1.7, 2.05]), pytest.approx([1, 1.5]), [1]] == AHEAD
    assert tokens_ahead((0.9, 0.7, 0.5), 1, 0) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_those_requests_draft_on_whose_tokens_pay_together(seed: int) -> None:
    """By all sets of requests, each going on for all numbers of tokens."""
    rng = np.random.default_rng(seed)
    ranking = BudgetRanking(COSTS, BATCH, AHEAD, DECISION)
    ranking.begin(BATCH, 40)
    lengths, going_on = [0] * BATCH, list(SLOTS)
    for depth in range(3):
        chances = {slot: float(rng.random() ** (depth + 1)) for slot in going_on}
        worths: dict[tuple[int, ...], float] = {(): 0.0}
        for chosen in some_of(going_on):
            count = len(chosen)
            for more, tokens in enumerate(AHEAD[depth] if chosen else (), start=1):
                first = COSTS.onward_seconds(count, 0) if depth else COSTS.draft_seconds(count, count, 0)
                passes = float(first + (more - 1) * COSTS.onward_seconds(count, 0))
                besides = more * (float(COSTS.asking_seconds(count)) + BESIDES * count)
                longer = [length + more * (slot in chosen) for slot, length in enumerate(lengths)]
                seconds = passes + besides + verifying(longer) - verifying(lengths)
                worth = tokens * sum(chances[slot] for slot in chosen) - ranking.rate * seconds
                worths[chosen] = max(worth, worths.get(chosen, -np.inf))
        going_on = ranking.admitted(chances, None if depth else dict.fromkeys(SLOTS, 1))
        assert tuple(going_on) == max(worths, key=worths.__getitem__)
        for slot in going_on:
            lengths[slot] += 1


def test_a_first_token_is_drafted_for_those_behind_it() -> None:
    """Which alone would not pay."""
    alone, ahead = (BudgetRanking(COSTS, 1, [tokens_ahead((0.99,) * 3, longest, 0)], DECISION) for longest in (1, 3))
    for ranking in (alone, ahead):
        ranking.begin(1, 40)
    chance = {0: 0.15}
    assert alone.admitted(chance, {0: 1}) == []
    assert ahead.admitted(chance, {0: 1}) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_those_tokens_are_verified_that_pay_together(seed: int) -> None:
    """Of the likeliest tokens as many, by all of their numbers; more padding takes longer."""
    rng = np.random.default_rng(seed)
    ranking = BudgetRanking(COSTS, BATCH, AHEAD, DECISION)
    ranking.begin(BATCH, 40)
    stands = {slot: np.cumprod(rng.random(int(rng.integers(0, 4)))).tolist() for slot in SLOTS}
    ranked = sorted(((stand, slot) for slot, own in stands.items() for stand in own), reverse=True)
    worths = {}
    for best in range(len(ranked) + 1):
        counts = tuple(sum(slot == own for _, own in ranked[:best]) for slot in SLOTS)
        worths[counts] = sum(stand for stand, _ in ranked[:best]) - ranking.rate * verifying(counts)
    found = ranking.verified(stands)
    assert tuple(found[slot] for slot in SLOTS) == max(worths, key=worths.__getitem__)


def test_the_rate_is_what_steps_reach_with_all_that_they_spend() -> None:
    ranking = BudgetRanking(COSTS, 2, AHEAD, DECISION)
    rest = float(COSTS.step_seconds(2)) + 2 * DECISION.step + COSTS.ranking_seconds(2, 1, 2)
    begun = float(COSTS.verify_seconds(2, 2, 0)) + rest  # a step without drafts
    assert ranking.rate == pytest.approx(2 / begun)
    ranking.begin(2, 40)
    assert ranking.admitted({0: 0.9, 1: 0.8}, {0: 1, 1: 2}) == [0, 1]
    assert ranking.verified({0: [0.9], 1: [0.8]}) == {0: 1, 1: 1}
    for tokens in (2, 1):
        ranking.committed(tokens)
    drafting = float(COSTS.draft_seconds(2, 3, 0) + COSTS.asking_seconds(2)) + 2 * BESIDES
    spent = rest + drafting + verifying((1, 1), batch=2)
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
