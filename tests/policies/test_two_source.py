"""Two sources priced together: the rule by trying everything, and its limits."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.policies.base import Signal
from draftgauge.policies.fitted import FittedPolicy, fitted_policy
from draftgauge.policies.ngrams import Match
from draftgauge.policies.two_source import SIGNALS, LookupNumbers, TwoSource, TwoSourceNumbers
from linear_costs import LinearCosts

GAMMA_MAX = 6


def random_numbers(seed: int, gamma_max: int = GAMMA_MAX) -> TwoSourceNumbers:
    rng = np.random.default_rng(seed)
    lookup = LookupNumbers(*rng.normal((-0.5, 0.6, 0.8, 0.8), 0.4).tolist())
    constant, slope, agrees, disagrees = rng.normal((0.0, 1.0, 0.8, -0.5), 0.3).tolist()
    by_depth = tuple(rng.uniform(0.4, 0.9, gamma_max).tolist())
    return TwoSourceNumbers(constant, slope, agrees, disagrees, lookup, by_depth, float(rng.uniform(0, 1)))


def test_the_chance_of_a_looked_up_token_by_hand() -> None:
    lookup = LookupNumbers(constant=-1.0, log_matched=0.5, log_streak=0.25, always=2.0)
    broken = lookup.chance(Match(token=3, matched=4, seen=5, streak=2))
    assert broken == pytest.approx(1 / (1 + math.exp(1.0 - 0.5 * math.log(4) - 0.25 * math.log(2))))
    assert lookup.chance(Match(3, 4, 2, 2)) == pytest.approx(
        1 / (1 + math.exp(-1.0 - 0.5 * math.log(4) - 0.25 * math.log(2)))
    )
    for extreme in (-1e4, 1e4):  # what a file may hold
        assert LookupNumbers(extreme, 0.0, 0.0, 0.0).chance(Match(3, 1, 1, 1)) == pytest.approx(float(extreme > 0))


class Uneven(LinearCosts):
    """Every third token makes the pass cheaper."""

    def step_seconds(self, gamma, context, reads=NO_SIGNALS, appended=0):
        verified = np.asarray(gamma) + appended
        return super().step_seconds(gamma, context, reads, appended) - 0.2 * (verified % 3 == 2)


def tails(
    policy: TwoSource, context: list[int], depth: int, first: Match | None, chance: float, before: float
) -> dict[tuple[int, ...], float]:
    """Every tail that can be looked up from a place on, with what it is worth."""
    found, tokens, gained = {(): 0.0}, [], 0.0
    match = first
    while match is not None and depth + len(tokens) < GAMMA_MAX:
        chance *= policy.numbers.lookup.chance(match)
        gained += chance - policy._rollback[depth + len(tokens)] * (before - chance)
        before = chance
        tokens.append(match.token)
        price = policy.verify[depth + len(tokens)] - policy.verify[depth]
        found[tuple(tokens)] = gained - price
        match = policy.index.match([*context, *tokens])
    return found


@settings(deadline=None, max_examples=80)
@given(seed=st.integers(0, 100_000), verifying=st.sampled_from([0.0, 0.05, 0.3]), drafting=st.sampled_from([0.02, 0.2]))
def test_it_takes_what_is_worth_most(seed: int, verifying: float, drafting: float) -> None:
    rng = np.random.default_rng(seed)
    text = (rng.integers(0, 3, rng.integers(1, 40)).tolist() * 80)[: rng.integers(1, 80)]  # repeated: long matches
    numbers = random_numbers(seed)
    kind = Uneven if seed % 2 else LinearCosts
    policy = TwoSource(numbers, kind(drafting=drafting, verifying=verifying, rollback=seed % 3 * 0.1))
    policy.reset()
    policy.read(text)
    context, depth, chance, before = list(text), 0, 1.0, 1.0
    replaced: Match | None = None
    goes_on = policy.limit() > 0
    while True:
        match = policy.index.match(context)
        best = max(tails(policy, context, depth, match, chance, chance).values())
        if depth < GAMMA_MAX:
            worth = policy.prices.worth_of_drafting(depth, chance)
            assert goes_on == (worth > max(0.0, numbers.tail_weight * best))
        if not goes_on or depth == GAMMA_MAX:
            break
        token, confidence = int(rng.integers(0, 3)), rng.choice([rng.uniform(0.05, 0.99), 0.0, 1.0], p=[0.8, 0.1, 0.1])
        goes_on = policy.keep_drafting(Signal(depth + 1, confidence, 0.0, 0.0, token))
        held = min(max(confidence, 1e-6), 1 - 1e-4)
        z = numbers.constant + numbers.logit_confidence * math.log(held / (1 - held))
        if match is not None:
            z += numbers.agrees if match.token == token else numbers.disagrees
        replaced = match if match is not None and match.token != token else None
        before, chance = chance, chance / (1 + math.exp(-z))
        context.append(token)
        depth += 1
    whole = tails(policy, context, depth, match, chance, chance)
    if not depth:
        assert list(policy.extend(99)) == list(max(whole, key=whole.__getitem__))
        return
    price = policy.verify[depth] - policy.verify[depth - 1] + policy._rollback[depth - 1] * (before - chance)
    ends = {(False, tokens): chance - price + worth for tokens, worth in whole.items()} | {(True, ()): 0.0}
    if replaced is not None:
        instead = tails(policy, context[:-1], depth - 1, replaced, before - chance, before)
        ends |= {(True, tokens): worth for tokens, worth in instead.items()}
    chosen = policy.drops_last(), tuple(policy.extend(99))
    assert ends[chosen] == pytest.approx(max(ends.values()), abs=1e-12)


def test_no_more_is_appended_than_there_is_room_for() -> None:
    policy = TwoSource(random_numbers(1), LinearCosts(verifying=0.0, drafting=9.0))
    policy.reset()
    policy.read([1, 2, 3, 4, 5] * 6)
    assert policy.limit() == 0
    assert list(policy.extend(99)) == [1, 2, 3, 4, 5, 1]
    assert list(policy.extend(2)) == [1, 2]
    assert list(policy.extend(0)) == []


def test_it_drafts_where_a_fixed_length_pays_whatever_the_text_brings_elsewhere() -> None:
    """At the rate that looking up reaches besides, no length would pay: one token of 0.8 takes 0.45 s, worth 0.87."""
    numbers = replace(random_numbers(0), accepted_by_depth=(0.8,) * GAMMA_MAX, rate_scale=1.5)
    policy = TwoSource(numbers, LinearCosts(drafting=0.45))
    policy.reset()
    policy.read([1, 2, 3])
    assert policy.limit() == GAMMA_MAX
    assert policy.verify[3] == pytest.approx(1.5 * policy.prices.verify[3])


def test_a_file_of_it_and_what_it_refuses() -> None:
    fitted = FittedPolicy("two-source", GAMMA_MAX, SIGNALS, asdict(random_numbers(5)))
    assert isinstance(fitted_policy(fitted, GAMMA_MAX, LinearCosts()), TwoSource)
    with pytest.raises(DraftgaugeError, match="weighs the cost"):
        fitted_policy(fitted, GAMMA_MAX, None)
