"""Two sources priced together: the rule by brute force, token by token as at once, and with one source the rule of
stopping.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.fitting.two_source import fit_two_source
from draftgauge.policies.base import DecisionSeconds
from draftgauge.policies.fitted import FittedPolicy, fitted_policy
from draftgauge.policies.stopping import SIGNALS, ThroughputStopping, thresholds
from draftgauge.policies.suffix import CODE_BITS, ORDER
from draftgauge.policies.suffix_columns import Continuation, continuations_of
from draftgauge.policies.tail_model import TailByOrder, TailModel, TailState, shared_terms
from draftgauge.policies.two_source import TwoSource
from draftgauge.policies.two_source_rule import Instead, Rule, TwoSourceNumbers, best_rate, cut, running_sums
from draftgauge.policies.two_source_trace import decided_by
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import replay
from draftgauge.replaying.views import text_view
from linear_costs import LinearCosts, curve
from synthetic import repeating_trace, sampled_trace
from two_source_numbers import GAMMA_MAX, random_numbers


class Asked:
    """The policy without the form that decides for all positions at once."""

    def __init__(self, inner: TwoSource) -> None:
        self.reads, self.read, self.decision = inner.reads, inner.read, inner.decision
        self.reset, self.limit, self.keep_drafting = inner.reset, inner.limit, inner.keep_drafting
        self.trims, self.extend, self.observe = inner.trims, inner.extend, inner.observe


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    verifying=st.sampled_from([0.0, 0.02, 0.2]),
    sources=st.sampled_from(["both", "text", "model"]),
)
def test_asked_token_by_token_and_at_once_it_does_the_same(seed: int, verifying: float, sources: str) -> None:
    trace = repeating_trace(seed, prompts=3, length=50, gamma_max=GAMMA_MAX, vocabulary=5)
    costs = LinearCosts(drafting=0.1, verifying=verifying)
    policy = TwoSource(random_numbers(seed, sources=sources), GAMMA_MAX, costs)
    at_once, asked = replay(trace, policy).record, replay(trace, Asked(policy)).record
    for name in ("prompt", "position", "drafted", "trimmed", "appended", "accepted", "committed"):
        np.testing.assert_array_equal(getattr(at_once, name), getattr(asked, name), err_msg=name)
    if sources != "both":
        assert not (at_once.drafted if sources == "text" else at_once.appended).any()


def test_it_mixes_both_sources() -> None:
    trace = repeating_trace(3, prompts=6, length=80, gamma_max=GAMMA_MAX, vocabulary=5)
    record = replay(trace, TwoSource(random_numbers(5, kappa=0.7), GAMMA_MAX, LinearCosts(drafting=0.05))).record
    assert ((record.drafted > 0) & (record.appended > 0)).sum() > 5
    assert ((record.drafted == 0) & (record.appended > 0)).sum() > 5
    assert record.accepted_text.sum() > 20


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), verifying=st.sampled_from([0.0, 0.05, 0.3]))
def test_the_end_of_a_draft_is_what_is_worth_most(seed: int, verifying: float) -> None:
    """By brute force over keeping the last token and leaving it out, and over all tails."""
    trace = repeating_trace(seed, prompts=2, length=40, gamma_max=GAMMA_MAX, vocabulary=5)
    numbers, costs = random_numbers(seed), LinearCosts(drafting=0.1, verifying=verifying)
    policy, view = TwoSource(numbers, GAMMA_MAX, costs), text_view(trace)
    decided, foretold = decided_by(view, numbers), continuations_of(view)
    drafted = np.minimum(policy.text_lengths(view), draft_caps(trace))
    appended, trimmed = policy.appended_lengths(view, drafted), policy.trimmed(view, drafted)
    one, by_text, by_draft = numbers.instead
    for row, depth in enumerate(drafted.tolist()):
        worths = {}
        for out in range(min(depth, 1) + 1):
            begin = depth - out
            tail = foretold[begin]
            contradicts = not out or (
                tail.token[row, 0] != trace.draft_token[row, begin] if begin < GAMMA_MAX else False
            )
            running = decided.sums[begin].running[row]
            gains = np.diff(np.where(np.isfinite(running), running, np.nan), prepend=0.0)
            if out and contradicts and len(gains) and np.isfinite(gains[0]):
                chance = gains[0] / decided.stand[row, begin]
                stands = decided.stand[row, depth] / decided.stand[row, begin]
                logit = one + by_text * math.log(chance / (1 - chance)) + by_draft * math.log(stands / (1 - stands))
                gains = gains * (1 / (1 + math.exp(-logit)) / chance)
            kept = float(decided.stand[row, 1 : begin + 1].sum())
            for count in range(GAMMA_MAX - begin + 1 if contradicts else 1):
                if np.isfinite(gains[:count]).all():
                    price = policy.rate * verifying * (begin + count)
                    worths[out, count] = kept + float(gains[:count].sum()) - price
        best = max(worths.values())
        assert worths[int(trimmed[row]), int(appended[row])] == pytest.approx(best, abs=1e-9)


def test_what_is_left_out_is_seldom_right_and_what_takes_its_place_more_often() -> None:
    trace = repeating_trace(2, prompts=16, length=90, gamma_max=GAMMA_MAX, vocabulary=12)
    costs = curve(0.02, 0.02)
    fitted = fit_two_source([trace], [costs])
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters, "fitted")
    assert len(numbers.instead) == len(Instead._fields)
    record = replay(trace, TwoSource(numbers, GAMMA_MAX, costs)).record
    rows, out = record.rows(trace), record.trimmed > 0
    kept = record.drafted - record.trimmed
    reached = trace.accepted[rows] >= kept
    right = trace.accepted[rows] >= record.drafted
    replaced = out & reached & (record.appended > 0)
    assert replaced.sum() > 10
    assert right[out & reached].mean() < 0.8 * right[~out & (record.drafted > 0)].mean()
    assert (record.accepted_text[replaced] > 0).mean() > right[replaced].mean()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000))
def test_the_rule_is_the_one_that_its_formulas_spell(seed: int) -> None:
    rng = np.random.default_rng(seed)
    numbers = random_numbers(seed)
    draft = 1 + np.cumsum(rng.uniform(0, 0.3, GAMMA_MAX + 1))
    verify = 1 + np.cumsum(rng.uniform(0, 0.1, GAMMA_MAX + 1) * (rng.random(GAMMA_MAX + 1) < 0.7))
    rate = float(rng.uniform(0.5, 3.0))
    rule = Rule(rate, draft, verify, numbers)
    chances = np.sort(rng.random((20, GAMMA_MAX)), axis=1)[:, ::-1]
    gains = [np.sort(rng.random((20, GAMMA_MAX - depth)), axis=1)[:, ::-1] for depth in range(GAMMA_MAX + 1)]
    gains = [np.where(np.arange(each.shape[1]) < rng.integers(0, GAMMA_MAX + 1, (20, 1)), each, 0.0) for each in gains]
    found = rule.choose(chances, [running_sums(each) for each in gains])
    onward = numbers.stopping.onward
    for row in range(20):
        drafted = 0
        while True:
            worths = [0.0]
            for length in range(1, GAMMA_MAX - drafted + 1):
                if gains[drafted][row, length - 1] == 0:
                    break
                price = rate * (verify[drafted + length] - verify[drafted])
                worths.append(float(gains[drafted][row, :length].sum()) - price)
            advantage = -math.inf
            for more in range(1, min(numbers.stopping.horizon, GAMMA_MAX - drafted) + 1):
                tokens = sum(math.prod(onward[drafted + 1 : drafted + 1 + i]) for i in range(more))
                price = rate * (draft[drafted + more] - draft[drafted])
                advantage = max(advantage, chances[row, drafted] * tokens - price)
            if drafted == GAMMA_MAX or advantage <= max(0.0, numbers.kappa * max(worths)):
                break
            drafted += 1
        assert found.drafted[row] == drafted
        assert found.appended[row] == int(np.argmax(worths))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_with_nothing_in_the_text_it_is_stopping(seed: int) -> None:
    numbers = random_numbers(seed)
    rng = np.random.default_rng(seed)
    draft = 1 + np.cumsum(rng.uniform(0, 0.3, GAMMA_MAX + 1))
    rule = Rule(2.0, draft, np.ones(GAMMA_MAX + 1), numbers)
    chances = rng.random((50, GAMMA_MAX))
    nothing = [running_sums(np.zeros((50, GAMMA_MAX - depth))) for depth in range(GAMMA_MAX + 1)]
    theta = thresholds(2.0, draft, numbers.stopping.onward, numbers.stopping.horizon)
    goes_on = chances > theta
    expected = np.where(goes_on.all(axis=1), GAMMA_MAX, (~goes_on).argmax(axis=1))
    np.testing.assert_array_equal(rule.choose(chances, nothing).drafted, expected)


def test_alone_the_model_is_stopping_on_a_whole_trace() -> None:
    trace = repeating_trace(4, prompts=4, length=60, gamma_max=GAMMA_MAX, vocabulary=9)
    costs, numbers = LinearCosts(drafting=0.05), random_numbers(8, sources="model")
    alone, stopping = TwoSource(numbers, GAMMA_MAX, costs), ThroughputStopping(numbers.stopping, GAMMA_MAX, costs)
    assert alone.rate == pytest.approx(stopping.rate)
    np.testing.assert_array_equal(replay(trace, alone).record.drafted, replay(trace, stopping).record.drafted)


def test_the_rate_is_what_the_best_rule_reaches() -> None:
    """Steps of two kinds with the true chances; the best rule drafts and appends by kind, and is found by trying."""
    rng, count = np.random.default_rng(0), 4000
    kinds = [(0.9, 0.3), (0.4, 0.8)]  # chance of each drafted and of each looked-up token
    numbers = random_numbers(0, kappa=1.0)
    chances, accepted, tails, runs = [], [], [], []
    for model, text in kinds:
        for _ in range(count):
            chances.append(tuple(model ** np.arange(1, GAMMA_MAX + 1)))
            accepted.append(min(int(rng.geometric(1 - model)) - 1, GAMMA_MAX))
            tails.append(tuple(tuple(model**d * text ** np.arange(1, GAMMA_MAX - d + 1)) for d in range(GAMMA_MAX + 1)))
            runs.append(tuple(min(int(rng.geometric(1 - text)) - 1, GAMMA_MAX - d) for d in range(GAMMA_MAX + 1)))
    stopping = replace(numbers.stopping, chances=tuple(chances), accepted=tuple(accepted), horizon=1)
    numbers = replace(numbers, stopping=stopping, tails=tuple(tails), runs=tuple(runs))
    draft, verify = 1 + 0.2 * np.arange(GAMMA_MAX + 1), 1 + 0.02 * np.arange(GAMMA_MAX + 1)
    found = best_rate(numbers, draft, verify)

    stood, behind = np.array(accepted).reshape(2, count), np.array(runs).reshape(2, count, GAMMA_MAX + 1)
    choices = [(d, b) for d in range(GAMMA_MAX + 1) for b in range(GAMMA_MAX + 1 - d)]

    def outcome(kind: int, d: int, b: int) -> tuple[float, float]:
        right = np.minimum(d, stood[kind]) + np.where(stood[kind] >= d, np.minimum(b, behind[kind, :, d]), 0) + 1
        return float(right.mean()), float(draft[d] + verify[d + b] - verify[d])

    every = [[outcome(kind, d, b) for d, b in choices] for kind in range(2)]
    best = max((t0 + t1) / (s0 + s1) for t0, s0 in every[0] for t1, s1 in every[1])
    assert 0.98 * best <= found <= best + 1e-9


def test_a_dearer_verification_appends_less() -> None:
    trace = repeating_trace(3, prompts=6, length=80, gamma_max=GAMMA_MAX, vocabulary=5)
    appended = [
        int(replay(trace, TwoSource(random_numbers(5), GAMMA_MAX, LinearCosts(verifying=v))).appended.sum())
        for v in (0.0, 0.1, 0.6)
    ]
    assert appended[0] > appended[1] > appended[2]


def test_numbers_for_shorter_drafts() -> None:
    shorter = cut(random_numbers(2), 3)
    policy = TwoSource(shorter, 3, LinearCosts())
    trace = repeating_trace(3, prompts=3, length=40, gamma_max=3, vocabulary=4)
    record = replay(trace, policy).record
    assert (record.drafted - record.trimmed + record.appended).max() <= 3


def test_reading_and_growing_the_index_are_charged() -> None:
    trace = repeating_trace(3, prompts=3, length=40, gamma_max=GAMMA_MAX, vocabulary=4)
    costs = curve(0.1)
    numbers = random_numbers(5)
    policy = TwoSource(numbers, GAMMA_MAX, costs)
    free = replay(trace, policy, costs)
    policy.decision = DecisionSeconds(token=0.25, step=2.0, reading=0.01, committed=0.5)
    charged = replay(trace, policy, costs)
    read = 0.01 * np.array([prompt.prompt_tokens for prompt in trace.prompts])
    added = 2.0 * free.steps + 0.25 * free.drafted + 0.5 * free.committed + read
    np.testing.assert_allclose(charged.seconds - free.seconds, added)


def test_a_file_of_it_and_what_it_refuses() -> None:
    numbers, costs = random_numbers(5), LinearCosts()
    fitted = FittedPolicy("two-source", GAMMA_MAX, SIGNALS, asdict(numbers))
    assert isinstance(fitted_policy(fitted, GAMMA_MAX, costs), TwoSource)
    with pytest.raises(DraftgaugeError, match="weighs the cost"):
        fitted_policy(fitted, GAMMA_MAX, None)
    other = replace(numbers, stopping=replace(numbers.stopping, vocabulary="one"))
    with pytest.raises(DraftgaugeError, match="another vocabulary"):
        fitted_policy(replace(fitted, parameters=asdict(other)), GAMMA_MAX, LinearCosts(vocabulary="two"))


def test_sampled_traces_are_refused_with_the_reason() -> None:
    policy = TwoSource(cut(random_numbers(5), 3), 3, LinearCosts())
    with pytest.raises(TraceError, match="does not hold the target's chances"):
        replay(sampled_trace(1, prompts=2, length=9, gamma_max=3), policy)


def test_a_price_makes_a_token_that_was_looked_up_so_much_dearer() -> None:
    numbers, draft, verify = random_numbers(5), 1 + 0.2 * np.arange(GAMMA_MAX + 1), 1 + 0.1 * np.arange(GAMMA_MAX + 1)
    priced, dear = Rule(2.0, draft, verify, replace(numbers, price=1.5)), Rule(2.0, draft, 1.5 * verify, numbers)
    for ours, theirs in zip(priced.prices, dear.prices, strict=True):
        assert ours == pytest.approx(theirs)
    assert priced.least == pytest.approx(dear.least)
    assert priced.lines == dear.lines


def test_where_nothing_pays_the_rate_is_that_of_steps_without_a_proposal() -> None:
    numbers = random_numbers(5)
    numbers = replace(numbers, stopping=replace(numbers.stopping, step_decision_seconds=0.5))
    assert TwoSource(numbers, GAMMA_MAX, LinearCosts(drafting=50.0, verifying=50.0)).rate == pytest.approx(1 / 1.5)


def test_the_rate_is_scaled_to_whole_outputs() -> None:
    numbers = random_numbers(3)
    scaled = replace(numbers, stopping=replace(numbers.stopping, rate_scale=0.5))
    whole, half = (TwoSource(each, GAMMA_MAX, LinearCosts()).rate for each in (numbers, scaled))
    assert half == pytest.approx(0.5 * whole)


@pytest.mark.parametrize("sources", ["both", "text"])
def test_it_decides_anew_on_another_trace(sources: str) -> None:
    traces = [repeating_trace(seed, prompts=3, length=50, gamma_max=GAMMA_MAX, vocabulary=5) for seed in (1, 2)]
    policy, *others = (TwoSource(random_numbers(5, sources=sources), GAMMA_MAX, LinearCosts()) for _ in range(3))
    for trace, other in zip(traces, others, strict=True):
        for name in ("drafted", "trimmed", "appended"):
            found, expected = (getattr(replay(trace, each).record, name) for each in (policy, other))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_tail_stands_by_the_logistic_model_of_its_terms(depth: int) -> None:
    rng, count, offsets = np.random.default_rng(depth), 40, GAMMA_MAX - depth
    numbers = random_numbers(depth).tail
    shape = count, offsets
    seen, order, token = rng.integers(1, 16, shape), rng.integers(1, ORDER + 1, shape), rng.integers(0, 6, shape)
    streak = rng.integers(1, seen + 1)
    foretold = Continuation(token.astype(np.int32), (order << CODE_BITS | streak << 4 | seen).astype(np.int16))
    agreed, disagreed, before = rng.integers(0, 3, (3, count))
    habit = rng.uniform(-1, 1, count)
    state = TailState(depth, before, rng.random(count), agreed, disagreed, habit, rng.random(count))
    after, own = (dict(zip(numbers.tokens, of, strict=True)) for of in (numbers.token_after, numbers.token_foretold))
    found, stand = TailModel(numbers, GAMMA_MAX).gains(state, foretold), state.stand
    for offset in range(offsets):
        shared = zip(numbers.shared, shared_terms(state, offset + 1), strict=True)
        logit = sum(weight * term for weight, term in shared)
        for row in range(count):
            terms = TailByOrder(
                one=1.0,
                log_streak=math.log(streak[row, offset]),
                log_seen=math.log(seen[row, offset]),
                unbroken=float(streak[row, offset] == seen[row, offset]),
            )
            logit[row] += np.dot(numbers.by_order[order[row, offset] - 1], terms)
            of_tokens = after.get(int(before[row]), 0.0) + own.get(int(token[row, offset]), 0.0)
            logit[row] += (1 - max(habit[row], 0.0)) * of_tokens
        stand = stand / (1 + np.exp(-logit))
        np.testing.assert_allclose(found[:, offset], stand)
        before = token[:, offset]


def test_a_tail_brings_something_only_where_all_drafted_tokens_stand() -> None:
    """One token is drafted, which stands in one step of two, and two are appended behind it, which are right."""
    numbers, nothing = random_numbers(0, kappa=1.0), (0,) * (GAMMA_MAX - 1)
    stopping = replace(numbers.stopping, chances=((0.9, 0.0, *nothing[1:]),) * 2, accepted=(1, 0), horizon=1)
    tails = (((), (0.8, 0.7), *((),) * (GAMMA_MAX - 1)),) * 2
    numbers = replace(numbers, stopping=stopping, tails=tails, runs=((0, 2, *nothing),) * 2)
    draft, verify = 1 + 0.1 * np.arange(GAMMA_MAX + 1), 1 + 0.02 * np.arange(GAMMA_MAX + 1)
    assert best_rate(numbers, draft, verify) == pytest.approx((4 + 1) / 2 / (1.1 + 2 * 0.02))
