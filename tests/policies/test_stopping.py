"""Throughput-optimal stopping: thresholds and rate by hand, the rule by brute force, and both ways of asking it."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.acceptance_model import AGREEMENTS, HazardShared, NextShared, StoppingNumbers, cut
from draftgauge.policies.base import DecisionSeconds, Signal, Step
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.fitted import fitted_policy, policy_of_file
from draftgauge.policies.online import _LEARNING_RATE, _REMEMBERED, OnlineCalibration
from draftgauge.policies.stopping import ThroughputStopping, best_rate, deciding_seconds, dinkelbach, thresholds
from draftgauge.policies.suffix import ORDER
from draftgauge.replaying.simulate import replay
from linear_costs import LinearCosts
from synthetic import sampled_trace, synthetic_trace

GAMMA_MAX = 6


def logit(chance: float) -> float:
    return math.log(chance / (1 - chance))


def constant_numbers(hazard: float, following: float, **changes: object) -> StoppingNumbers:
    """Models that say the same of every token."""
    numbers = StoppingNumbers(
        hazard_by_agreement=((logit(hazard), 0.0, 0.0),) * len(AGREEMENTS),
        hazard=(0.0,) * len(HazardShared._fields),
        next_by_order=((logit(following), 0.0, 0.0, 0.0),) * (ORDER + 1),
        next=(0.0,) * len(NextShared._fields),
        tokens=(),
        token_hazard=(),
        token_next=(),
        onward=(following,) * GAMMA_MAX,
        chances=tuple((following * hazard**j for j in range(GAMMA_MAX)) for _ in range(1)),
        accepted=(1,),
    )
    return replace(numbers, chances=tuple(map(tuple, numbers.chances)), **changes)


def test_thresholds_by_hand() -> None:
    seconds = np.array([1.0, 1.5, 1.6, 1.7])
    one = thresholds(2.0, seconds, (0.5, 0.5, 0.5), horizon=1)
    np.testing.assert_allclose(one, [1.0, 0.2, 0.2])
    # From nothing, two tokens for 0.6 s count as 1.5 of them, three for 0.7 s as 1.75: 2 x 0.7 / 1.75 is the least.
    np.testing.assert_allclose(thresholds(2.0, seconds, (0.5, 0.5, 0.5), horizon=3), [0.8, 0.2, 0.2])


def test_the_rate_is_the_one_that_the_best_thresholds_reach() -> None:
    """Dinkelbach's rate against the best of all rules that draft a length by group, found by trying them all."""
    rng = np.random.default_rng(0)
    groups = [(0.9, 60), (0.3, 60)]
    chances = np.concatenate([np.tile(chance ** np.arange(1, GAMMA_MAX + 1), (count, 1)) for chance, count in groups])
    accepted = np.concatenate([np.minimum(rng.geometric(1 - chance, count) - 1, GAMMA_MAX) for chance, count in groups])
    seconds = 1 + 0.2 * np.arange(GAMMA_MAX + 1)
    found = best_rate(chances, accepted, seconds, (0.0,) * GAMMA_MAX, 1)
    best = 0.0
    for lengths in itertools.product(range(GAMMA_MAX + 1), repeat=2):
        per_step = np.repeat(lengths, 60)
        best = max(best, float((np.minimum(per_step, accepted) + 1).sum() / seconds[per_step].sum()))
    assert 0.97 * best <= found <= best + 1e-9  # the chances are the true ones, the outcomes a sample of 120


def test_a_sequence_by_hand() -> None:
    """Hazard 0.8, next 0.8, 0.1 s a token: S m is 0.8, 0.64, 0.512, 0.41. The rule stops when S m < rate x 0.1."""
    policy = ThroughputStopping(constant_numbers(0.8, 0.8, horizon=1), GAMMA_MAX, LinearCosts())
    policy.rate = 5.0
    policy._theta = policy._thresholds()
    assert policy._theta == pytest.approx([0.5] * GAMMA_MAX)
    policy.reset()
    policy.read([1, 2, 3])
    assert policy.limit() == GAMMA_MAX
    assert [policy.keep_drafting(Signal(depth, 0.5, 0.0, 0.0, 7 + depth)) for depth in (1, 2, 3)] == [True, True, False]
    policy.rate = 8.5
    policy._theta = policy._thresholds()
    assert policy.limit() == 0


def test_all_positions_at_once_are_what_asking_token_by_token_gives() -> None:
    trace = synthetic_trace(seed=3, prompts=6, length=60, gamma_max=GAMMA_MAX)
    rng = np.random.default_rng(0)
    random = StoppingNumbers(
        hazard_by_agreement=tuple(map(tuple, rng.normal(0.5, 0.3, (len(AGREEMENTS), 3)).tolist())),
        hazard=tuple(rng.normal(0, 0.2, len(HazardShared._fields)).tolist()),
        next_by_order=tuple(map(tuple, rng.normal(0.3, 0.3, (ORDER + 1, 4)).tolist())),
        next=tuple(rng.normal(0, 0.2, len(NextShared._fields)).tolist()),
        tokens=(3, 11, 49),
        token_hazard=(1.0, -0.5, 0.2),
        token_next=(0.5, 1.0, -1.0),
        onward=(0.6,) * GAMMA_MAX,
        chances=((0.5, 0.4, 0.3, 0.2, 0.1, 0.1),),
        accepted=(2,),
    )
    for trims in (False, True):
        policy = ThroughputStopping(replace(random, trims=trims), GAMMA_MAX, LinearCosts(drafting=0.05, verifying=0.2))
        at_once = replay(trace, policy).record
        policy.text_lengths = lambda view: None  # type: ignore[method-assign]  # now it is asked step by step
        asked = replay(trace, policy).record
        np.testing.assert_array_equal(at_once.drafted, asked.drafted)
        np.testing.assert_array_equal(at_once.trimmed, asked.trimmed)
        assert len(set(at_once.drafted.tolist())) > 2
        assert at_once.trimmed.any() == trims


def test_the_last_token_is_left_out_where_it_is_worth_less_than_its_verification() -> None:
    numbers = constant_numbers(hazard=0.5, following=0.9, trims=True)
    for verifying in (0.0, 0.02, 0.2):
        costs = LinearCosts(drafting=0.001, verifying=verifying)
        policy = ThroughputStopping(numbers, GAMMA_MAX, costs)
        policy.read([1, 2])
        policy.limit()
        left_out = []
        for depth in range(1, GAMMA_MAX + 1):
            policy.keep_drafting(Signal(depth, 0.5, 1.0, 0.1, 3))
            left_out.append(policy.trims())
        assert left_out == [0.5**depth < policy.rate * verifying for depth in range(1, GAMMA_MAX + 1)]
        assert any(left_out) == (verifying > 0)
        learning = ThroughputStopping(replace(numbers, online=True), GAMMA_MAX, costs)
        learning.read([1, 2])
        learning.limit()
        for depth in range(1, GAMMA_MAX + 1):
            learning.keep_drafting(Signal(depth, 0.5, 1.0, 0.1, 3))
            assert not learning.trims()  # what is left out is not judged, and could not be learned from


def test_drafts_that_are_drawn_are_verified_whole() -> None:
    """A token left out for what it is would change what is drawn."""
    trace = sampled_trace(1, prompts=4, length=30, gamma_max=GAMMA_MAX)
    costs = LinearCosts(drafting=0.01, verifying=0.3)
    kept, trims = (
        replay(trace, ThroughputStopping(constant_numbers(0.5, 0.9, trims=trims), GAMMA_MAX, costs))
        for trims in (False, True)
    )
    np.testing.assert_array_equal(kept.steps, trims.steps)
    assert not trims.record.trimmed.any()


def test_it_predicts_a_chance_for_every_drafted_token() -> None:
    trace = synthetic_trace(seed=1, prompts=2, length=20, gamma_max=GAMMA_MAX)
    from draftgauge.replaying.simulate import text_view

    found = ThroughputStopping(constant_numbers(0.7, 0.6), GAMMA_MAX, LinearCosts()).acceptance(text_view(trace))
    drafted = trace.draft_token >= 0
    np.testing.assert_allclose(found[drafted], 0.7)
    assert np.isnan(found[~drafted]).all()


def test_online_it_learns_that_nothing_is_accepted_and_probes_now_and_then() -> None:
    policy = ThroughputStopping(constant_numbers(0.8, 0.8, online=True, horizon=1), GAMMA_MAX, LinearCosts())
    policy.reset()
    policy.read([1])
    drafted = []
    for _ in range(6000):
        most = policy.limit()
        count = 0
        for depth in range(1, most + 1):
            count = depth
            if depth < most and not policy.keep_drafting(Signal(depth, 0.5, 0.0, 0.0, depth)):
                break
        drafted.append(count)
        policy.observe(Step(count, 0, 1, (), tokens=[3]))
    assert min(drafted[:5]) > 0
    assert 0 < sum(drafted[-200:]) <= 8  # one token in 32 steps


def test_a_policy_cut_to_shorter_drafts_still_runs() -> None:
    shorter = cut(constant_numbers(0.8, 0.8), 3)
    assert ThroughputStopping(shorter, 3, LinearCosts(drafting=0.01)).limit() == 3


def test_it_cannot_be_made_without_a_cost_curve(tmp_path) -> None:
    from draftgauge.policies import make_policy

    with pytest.raises(DraftgaugeError, match="weighs the cost"):
        make_policy("stopping", 8)


def test_what_is_known_of_tokens_holds_for_their_vocabulary_only() -> None:
    from draftgauge.policies import make_policy
    from draftgauge.policies.bundled import bundled_policy

    bundled = bundled_policy("stopping")
    own = LinearCosts(vocabulary=bundled.parameters["vocabulary"])
    assert len(make_policy("stopping", GAMMA_MAX, own).numbers.tokens) > 100
    for other in (LinearCosts(), LinearCosts(vocabulary="another")):
        assert make_policy("stopping", GAMMA_MAX, other).numbers.tokens == ()
    assert fitted_policy(bundled, bundled.gamma_max, own).numbers.tokens
    assert fitted_policy(bundled, bundled.gamma_max, LinearCosts()).numbers.tokens  # recorded before vocabularies were
    with pytest.raises(DraftgaugeError, match="another vocabulary"):
        fitted_policy(bundled, bundled.gamma_max, LinearCosts(vocabulary="another"))


def test_the_bundled_numbers_are_of_the_bundled_vocabulary() -> None:
    from draftgauge.models.loading import load_tokenizer
    from draftgauge.models.vocabulary import vocabulary_digest
    from draftgauge.policies.bundled import bundled_policy

    assert bundled_policy("stopping").parameters["vocabulary"] == vocabulary_digest(load_tokenizer("reference"))


def test_a_dip_in_a_noisy_cost_curve_is_averaged_out() -> None:
    class Dipping(LinearCosts):
        def step_seconds(self, gamma, context, reads):
            return np.asarray([1.0, 1.2, 1.5, 1.1, 1.6, 1.7, 1.8])[gamma]

    found = deciding_seconds(Dipping(), GAMMA_MAX, DecisionSeconds(token=0.01))
    np.testing.assert_allclose(found, np.array([1.0, 1.2, 1.3, 1.3, 1.6, 1.7, 1.8]) + 0.01 * np.arange(7))


def test_reading_signals_and_deciding_are_part_of_a_steps_seconds() -> None:
    found = deciding_seconds(LinearCosts(drafting=0.1, reading=0.03), GAMMA_MAX, DecisionSeconds(token=0.01, step=0.5))
    np.testing.assert_allclose(found, 1.0 + 2 * 0.03 + 0.5 + (0.1 + 0.01) * np.arange(GAMMA_MAX + 1))


def test_the_rate_is_scaled_to_whole_outputs() -> None:
    whole, half = (
        ThroughputStopping(constant_numbers(0.8, 0.8, rate_scale=scale), GAMMA_MAX, LinearCosts()).rate
        for scale in (1.0, 0.5)
    )
    assert half == pytest.approx(0.5 * whole)


def test_online_the_thresholds_follow_the_rate() -> None:
    policy = ThroughputStopping(constant_numbers(0.8, 0.8, online=True, horizon=1), GAMMA_MAX, LinearCosts())
    policy.read([1])
    fitted = policy.rate
    for _ in range(100):
        policy.limit()
        for depth in range(1, GAMMA_MAX + 1):
            policy.keep_drafting(Signal(depth, 0.5, 0.0, 0.0, depth))
        policy.observe(Step(GAMMA_MAX, GAMMA_MAX, GAMMA_MAX + 1, (), tokens=[3]))
    assert policy.rate > 1.1 * fitted
    assert policy._theta == pytest.approx(thresholds(policy.rate, policy.seconds, policy.numbers.onward, 1))


def test_it_decides_anew_on_another_trace() -> None:
    traces = [synthetic_trace(seed, prompts=4, length=40, gamma_max=GAMMA_MAX) for seed in (1, 2)]
    numbers = constant_numbers(0.5, 0.8, trims=True)
    policy, *others = (ThroughputStopping(numbers, GAMMA_MAX, LinearCosts(verifying=0.2)) for _ in range(3))
    for trace, other in zip(traces, others, strict=True):
        for name in ("drafted", "trimmed"):
            found, expected = (getattr(replay(trace, each).record, name) for each in (policy, other))
            np.testing.assert_array_equal(found, expected)


def test_the_rate_climbs_until_it_is_the_one_that_seconds_are_priced_by() -> None:
    assert dinkelbach(1.0, lambda rate: (rate + 3.0) / 2) == pytest.approx(3.0, rel=1e-5)
    assert dinkelbach(1.0, lambda rate: 1.0) == 1.0


def test_online_the_constants_move_by_what_was_judged() -> None:
    """Two of four tokens stand and the third does not; of the fourth nothing is known."""
    online = OnlineCalibration(rate=2.0)
    online.begin(0.5)
    for _ in range(4):
        online.note(0.5, 0.5)
    hazard, following, _ = online.learn(Step(4, 2, 3), seconds=1.0)
    assert hazard == following == pytest.approx(_LEARNING_RATE * (0.5 + 0.5 - 0.5))


def test_online_the_rate_becomes_that_of_the_last_steps() -> None:
    online = OnlineCalibration(rate=2.0)
    rates = []
    for _ in range(10 * _REMEMBERED):
        online.begin(0.5)
        rates.append(online.learn(Step(0, 0, 1), seconds=2.0)[2])
    assert rates[0] == pytest.approx(2.0, rel=0.01)
    assert rates[-1] == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("part", ["hazard", "tokens", "onward"])
def test_numbers_that_were_cut_by_hand_are_refused(part: str, tmp_path: Path) -> None:
    bundled = asdict(bundled_policy("stopping"))
    bundled["parameters"] = dict(bundled["parameters"]) | {part: bundled["parameters"][part][:-1]}
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(bundled))
    with pytest.raises(DraftgaugeError, match=r"edited\.json: its numbers do not fit together"):
        policy_of_file(path, bundled["gamma_max"], LinearCosts())
