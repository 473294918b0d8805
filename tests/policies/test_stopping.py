"""Throughput-optimal stopping and two sources: prices by hand, the rule by trying everything, and limits."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.policies.base import Signal, seconds_by_length
from draftgauge.policies.fitted import (
    FILE,
    FittedPolicy,
    bundled_policy,
    fitted_policy,
    load_fitted,
    save_fitted,
)
from draftgauge.policies.ngrams import Match
from draftgauge.policies.spec import make_policy
from draftgauge.policies.stopping import Prices, StoppingNumbers, ThroughputStopping
from draftgauge.policies.two_source import SIGNALS, LookupNumbers, TwoSource, TwoSourceNumbers
from linear_costs import LinearCosts

GAMMA_MAX = 6
HALF = StoppingNumbers(constant=0.0, logit_confidence=1.0, accepted_by_depth=(0.5,) * GAMMA_MAX)


class Seconds(LinearCosts):
    """Given seconds by tokens drafted."""

    table = (1.0, 1.5, 1.6, 1.7)

    def step_seconds(self, gamma, context, reads=NO_SIGNALS, appended=0):
        return np.asarray(self.table)[np.asarray(gamma) + appended]


def test_prices_by_hand() -> None:
    prices = Prices(Seconds(), NO_SIGNALS, (0.5, 0.5, 0.5))
    # 1, 1.5, 1.75 and 1.875 tokens in 1, 1.5, 1.6 and 1.7 s.
    assert prices.rate == pytest.approx(1.875 / 1.7)
    # From nothing, a half token takes 0.5 s, three quarters take 0.6, and seven eighths 0.7.
    # Behind one token the next takes 0.1 s, and two that count as three quarters take 0.2: the next alone is cheaper.
    assert prices.thresholds == pytest.approx([prices.rate * 0.7 / 0.875, prices.rate * 0.2, prices.rate * 0.2])
    assert prices.worth_of_drafting(0, 0.9) == pytest.approx(0.9 * 0.875 - prices.rate * 0.7)
    assert prices.worth_of_drafting(2, 0.9) == pytest.approx(0.45 - prices.rate * 0.1)
    assert seconds_by_length(LinearCosts(), 2, NO_SIGNALS).tolist() == pytest.approx([1.0, 1.1, 1.2])  # amid contexts


def test_what_rolling_back_takes_is_priced_by_hand() -> None:
    prices = Prices(Seconds(rollback=0.02), NO_SIGNALS, (0.5, 0.5, 0.5))
    # 0.02 s where the first token is refused (a half), 0.04 where the second is (a quarter), 0.06 where the third is.
    assert prices.rate == pytest.approx(1.875 / (1.7 + 0.01 + 0.01 + 0.0075))
    assert prices.rollback == pytest.approx([prices.rate * seconds for seconds in (0.02, 0.04, 0.06)])
    # Behind two tokens the third is right in a half of the cases, and takes 0.06 s in the other half.
    assert prices.worth_of_drafting(2, 0.9) == pytest.approx(0.9 * (0.5 - prices.rate * 0.03) - prices.rate * 0.1)
    assert prices.thresholds[2] == pytest.approx(prices.rate * 0.1 / (0.5 - prices.rate * 0.03))
    dear = Prices(Seconds(rollback=9.0), NO_SIGNALS, (0.5, 0.5, 0.5))
    assert dear.rate == 1.0
    assert dear.thresholds == [math.inf] * 3


class Step(LinearCosts):
    """Rows in fours: a pass of five tokens takes twice as long as one of four."""

    def step_seconds(self, gamma, context, reads=NO_SIGNALS, appended=0):
        verified = np.asarray(gamma) + appended + 1
        return np.ceil(verified / 4) + 0.05 * np.asarray(gamma)


@pytest.mark.parametrize("name", ["stopping", "two-source"])
def test_rules_stop_before_a_step_of_the_costs(name: str) -> None:
    """Tokens beyond the third would double the pass."""
    policy = make_policy(name, GAMMA_MAX, Step())
    if name == "two-source":
        policy.reset()
        policy.read([1, 2, 3])
    asked, limit = 0, policy.limit()
    while asked < limit:
        asked += 1
        if not policy.keep_drafting(Signal(asked, 0.9, 0.0, 0.0, 10 + asked)):
            break
    assert asked == 3


def test_a_step_by_hand() -> None:
    """Confidences of 0.8 are chances; S r is 0.4, 0.32, 0.256, ... and drafting stops where it falls below theta."""
    policy = ThroughputStopping(HALF, LinearCosts())
    policy._least = np.array([0.6] * GAMMA_MAX)
    assert policy.limit() == GAMMA_MAX
    assert policy.chance(np.array([0.0, 1.0])).tolist() == pytest.approx([1e-6, 1 - 1e-4], rel=1e-9)
    assert [policy.keep_drafting(Signal(depth, 0.8, 0.0, 0.0)) for depth in (1, 2, 3)] == [True, True, False]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), drafting=st.sampled_from([0.01, 0.1, 0.4, 3.0]))
def test_it_drafts_while_the_next_token_is_worth_more_than_its_price(seed: int, drafting: float) -> None:
    rng = np.random.default_rng(seed)
    numbers = StoppingNumbers(
        float(rng.normal(0, 0.5)), float(rng.uniform(0.2, 1.5)), tuple(rng.uniform(0.2, 0.95, GAMMA_MAX).tolist())
    )
    policy = ThroughputStopping(numbers, LinearCosts(drafting=drafting))
    confidences = rng.uniform(0.05, 1.0, GAMMA_MAX).tolist()
    confidences[rng.integers(GAMMA_MAX)] = float(rng.integers(2))
    chance, drafted = 1.0, 0
    while drafted < GAMMA_MAX and chance > policy.prices.thresholds[drafted]:
        held = min(max(confidences[drafted], 1e-6), 1 - 1e-4)
        z = numbers.constant + numbers.logit_confidence * math.log(held / (1 - held))
        chance /= 1 + math.exp(-z)
        drafted += 1
    asked = 0
    while asked < policy.limit():
        asked += 1
        if not _goes_on(policy, confidences[:asked]):
            break
    assert asked == drafted


def _goes_on(policy: ThroughputStopping, confidences: list[float]) -> bool:
    policy.limit()
    return [policy.keep_drafting(Signal(depth, c, 0.0, 0.0)) for depth, c in enumerate(confidences, start=1)][-1]


@pytest.mark.parametrize("name", ["stopping", "two-source"])
def test_the_bundled_numbers_serve_drafts_of_any_length(name: str) -> None:
    for gamma_max in (1, 3, 16, 30):
        policy = make_policy(name, gamma_max, LinearCosts(drafting=0.01))
        assert policy.limit() == gamma_max
    last = bundled_policy(name).parameters["accepted_by_depth"][-1]
    assert policy.numbers.accepted_by_depth[-14:] == (last,) * 14  # of 30, beyond what was fitted


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    for name in ("stopping", "two-source", "speckv"):
        save_fitted(bundled_policy(name), tmp_path / "p.json")
        assert load_fitted(tmp_path / "p.json") == bundled_policy(name)
        words = bundled_policy(name).provenance["command"].split()
        assert all((Path(__file__).parents[2] / word).exists() for word in words if "/" in word)


def _with(fitted: FittedPolicy, path: str, value: object) -> FittedPolicy:
    parameters = json.loads(json.dumps(fitted.parameters))
    inner, *keys = parameters, *path.split(".")
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    return replace(fitted, parameters=parameters)


BROKEN = [
    ("stopping", "constant", math.nan),
    ("stopping", "lambda", 1),
    ("stopping", "logit_confidence", math.inf),
    ("stopping", "logit_confidence", 1e308),
    ("stopping", "accepted_by_depth", [0.5]),
    ("stopping", "accepted_by_depth", [0.5] * 15 + [1.5]),
    ("stopping", "accepted_by_depth", [0.5] * 15 + [-0.5]),
    ("stopping", "accepted_by_depth", 0.5),
    ("two-source", "lookup.always", -math.inf),
    ("two-source", "accepted_by_depth", [0.5] * 17),
    ("two-source", "agrees", "much"),
    ("two-source", "rate_scale", 0.0),
    ("two-source", "lookup", [1, 2, 3]),
    ("speckv", "network.hidden", [[0.5]]),
    ("speckv", "network.output_bias", 1e300),
]


@pytest.mark.parametrize(("name", "path", "value"), BROKEN)
def test_numbers_that_cannot_be_are_refused(name: str, path: str, value: object, tmp_path: Path) -> None:
    broken = _with(bundled_policy(name), path, value)
    with pytest.raises(DraftgaugeError, match=f"policy {re.escape(name)}"):
        fitted_policy(broken, broken.gamma_max, LinearCosts())
    finite = not (isinstance(value, float) and not math.isfinite(value))
    if finite:  # a file of it is refused likewise, naming the file
        FILE.write(tmp_path / "edited.json", asdict(broken))
        with pytest.raises(DraftgaugeError, match=r"edited\.json"):
            make_policy(str(tmp_path / "edited.json"), broken.gamma_max, LinearCosts())


def test_an_edited_file_and_one_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_fitted(bundled_policy("stopping"), path)
    text = path.read_text()
    path.write_text(text.replace('"constant": 0', '"constant": 2'))
    with pytest.raises(DraftgaugeError, match="does not match its checksum"):
        load_fitted(path)
    earlier = _with(bundled_policy("stopping"), "rate_scale", 1.1)  # a number that it had once
    assert isinstance(fitted_policy(earlier, earlier.gamma_max, LinearCosts()), ThroughputStopping)
    path.write_text(text.replace('"version": 2', '"version": 1'))
    with pytest.raises(DraftgaugeError, match=r"version 1, this draftgauge reads 2: fit it with `draftgauge fit"):
        load_fitted(path)


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
