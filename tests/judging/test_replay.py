"""Replay takes exactly the steps of a live loop; of sampled decoding, walks drawn from the trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from asked import Asked
from curves import linear_costs
from draftgauge.core.signals import SignalName
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.judging.evaluate import evaluate
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import Replay, best_fixed_gamma, prompt_steps, replay, replay_fixed_all, replay_lengths
from draftgauge.policies import Policy, Signal, Step, make_policy
from draftgauge.policies.base import asks_after_each_token
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import ConfidenceThreshold
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import DRAWS, drawn, draws
from draftgauge.traces.trace import PromptInfo, PromptRecord, Trace, draft_caps, make_record, narrow, select
from draftgauge.traces.writer import make_trace
from synthetic import coin_walks, replay_steps, sampled_trace, synthetic_trace

SPECS = ("no-draft", "fixed:1", "fixed:4", "hf-heuristic", "hf-heuristic:persistent=false", "hf-confidence:0.6")
SPECS += ("hf-confidence:adaptive=true", "cumulative-confidence:0.3")


def simulated_live(trace: Trace, prompt: int, policy: Policy) -> list[tuple[int, int, int, int]]:
    """A live loop over recorded tokens: drafts them one by one, compares each with the output, commits.

    Returns (position, drafted, accepted, committed) of every step.
    """
    first, end = trace.offsets[prompt], trace.offsets[prompt + 1]
    output = trace.token[first:end].tolist()
    policy.reset()
    committed_tokens: list[int] = []
    steps = []
    while len(committed_tokens) < len(output):
        position = len(committed_tokens)
        row = first + position
        available = [token for token in trace.draft_token[row].tolist() if token >= 0]
        limit = min(policy.limit(), trace.max_new_tokens - position - 1, len(available))
        draft: list[int] = []
        signals: list[Signal] = []
        while len(draft) < limit:
            depth = len(draft)
            draft.append(available[depth])
            shown = (float(column[row, depth]) for column in (trace.confidence, trace.entropy, trace.margin))
            signals.append(Signal(depth + 1, *shown))
            if asks_after_each_token(policy.reads) and len(draft) < limit and not policy.keep_drafting(signals[-1]):
                break
        accepted = 0
        while (
            accepted < len(draft)
            and position + accepted < len(output)
            and draft[accepted] == output[position + accepted]
        ):
            accepted += 1
        new = output[position : position + accepted + 1]
        committed_tokens += new
        entropy = float(trace.target_entropy[row + len(new) - 1])
        policy.observe(Step(len(draft), accepted, len(new), signals if policy.reads else (), entropy))
        steps.append((position, len(draft), accepted, len(new)))
    return steps


def steps_of(outcome: Replay, prompt: int) -> list[tuple[int, int, int, int]]:
    r = outcome.record
    of_prompt = r.prompt == prompt
    columns = [values[of_prompt].tolist() for values in (r.position, r.drafted, r.accepted, r.committed)]
    return list(zip(*columns, strict=True))


class TokenByToken(Asked):
    """A policy with a note of all it was told: every signal."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self.reads = frozenset(SignalName)
        self.asked: list[Signal] = []
        self.told: list[Step] = []

    def keep_drafting(self, signal: Signal) -> bool:
        self.asked.append(signal)
        return self.inner.keep_drafting(signal)

    def observe(self, step: Step) -> None:
        self.told.append(step)
        self.inner.observe(step)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 30), gamma_max=st.integers(4, 8))
def test_replay_takes_the_steps_of_a_live_loop(spec: str, seed: int, length: int, gamma_max: int) -> None:
    trace = synthetic_trace(seed, prompts=4, length=length, gamma_max=gamma_max)
    outcome = replay(trace, make_policy(spec, gamma_max))
    live = make_policy(spec, gamma_max)
    for prompt in range(len(trace.prompts)):
        assert steps_of(outcome, prompt) == simulated_live(trace, prompt, live)


def test_a_policy_is_told_what_happened_and_asked_only_where_it_can_decide() -> None:
    trace = synthetic_trace(5, prompts=3, length=40, gamma_max=5)
    policy = TokenByToken(make_policy("hf-confidence:0.5", 5))
    record = replay(trace, policy).record
    asked = iter(policy.asked)
    for i, step in enumerate(policy.told):
        row = trace.offsets[record.prompt[i]] + record.position[i]
        done = (record.drafted[i], record.accepted[i], record.committed[i])
        assert (step.drafted, step.accepted, step.committed) == done
        assert [s.depth for s in step.signals] == list(range(1, step.drafted + 1))
        assert [s.confidence for s in step.signals] == trace.confidence[row, : step.drafted].tolist()
        assert [s.entropy for s in step.signals] == trace.entropy[row, : step.drafted].tolist()
        assert [s.margin for s in step.signals] == trace.margin[row, : step.drafted].tolist()
        assert step.target_entropy == trace.target_entropy[row + step.committed - 1]
        most = min(5, trace.drafted[row], trace.max_new_tokens - record.position[i] - 1)
        assert all(next(asked) == signal for signal in step.signals[: most - 1])
    assert (len(policy.told), next(asked, None)) == (len(record.prompt), None)


def hand_made_trace(accepted: list[int], finish: str = "length") -> Trace:
    """One prompt of 100 tokens, drafts of 4 tokens everywhere."""
    info = PromptInfo(0, "0", "code", "test", prompt_tokens=100, output_tokens=len(accepted), finish=finish)
    drafts = [[0] * right + [1] * (4 - right) for right in accepted]
    return make_trace([make_record(info, [0] * len(accepted), drafts, gamma_max=4)], len(accepted))


def test_decisions_of_the_heuristic_by_hand() -> None:
    trace = hand_made_trace([1, 0, 4, 3, 0, 4, 0, 0, 3, 2, 1, 0])
    outcome = replay(trace, make_policy("hf-heuristic:start=2", 4))
    assert steps_of(outcome, 0) == [
        (0, 2, 1, 2),  # not full: 2 -> 1
        (2, 1, 1, 2),  # full: 1 -> 3
        (4, 3, 0, 1),  # 3 -> 2
        (5, 2, 2, 3),  # full: 2 -> 4
        (8, 3, 3, 4),  # room for 3 only
    ]
    assert outcome.tokens_per_step == 12 / 5


def test_a_step_does_not_know_that_the_output_stops_early() -> None:
    trace = replace(hand_made_trace([0, 3, 2, 1], finish="stop"), max_new_tokens=50)
    outcome = replay(trace, FixedLength(4))
    # The end token was drafted: no token of the target's own.
    assert steps_of(outcome, 0) == [(0, 4, 0, 1), (1, 4, 3, 3)]


def test_modelled_seconds_follow_length_and_context() -> None:
    costs = linear_costs(4)
    outcome = replay(hand_made_trace([0, 4, 0, 0, 0, 0, 0, 0]), FixedLength(2), costs)
    drafted, contexts = [2, 2, 2, 2, 1, 0], [100, 101, 104, 105, 106, 107]
    expected = [float(costs.step_seconds(g, c)) for g, c in zip(drafted, contexts, strict=True)]
    assert outcome.record.drafted.tolist() == drafted
    assert outcome.seconds[0] == pytest.approx(sum(expected), rel=1e-12)
    assert outcome.tokens_per_second == pytest.approx(8 / sum(expected), rel=1e-12)


def test_catching_up_is_charged_where_it_happens() -> None:
    plain = linear_costs(4)
    costs = replace(plain, catch_up=(0.0, 10.0, 200.0, 3000.0))
    trace = hand_made_trace([2, 0, 0, 2, 0, 0, 0, 0, 1, 0, 0])

    def added(given: CostCurve, wanted: list[int]) -> list[float]:
        rows = np.array([0, 3, 6, 7, 8, 10])
        with_it, without = (replay_steps(trace, rows, np.array(wanted), curve).record for curve in (given, plain))
        assert with_it.position.tolist() == rows.tolist()
        return (with_it.seconds - without.seconds).round(6).tolist()

    # Two accepted of two, two of three, nothing, nothing, one of one, then: one to take in, two, one, (two), three,
    # two.
    assert added(costs, [2, 3, 0, 0, 1, 1]) == [0.0, 10.0, 0.0, 0.0, 200.0, 10.0]
    # A drafter that takes in all committed tokens anew: one, three, three after that and two idle steps (five, as
    # four).
    anew = replace(costs, keeps_drafted=False)
    assert added(anew, [2, 3, 0, 0, 1, 1]) == [0.0, 200.0, 0.0, 0.0, 3000.0, 10.0]


def test_without_costs_there_are_no_seconds() -> None:
    outcome = replay(synthetic_trace(0, prompts=2, length=9, gamma_max=3), FixedLength(0))
    assert np.isnan(outcome.seconds).all()
    assert np.isnan(outcome.tokens_per_second)
    assert outcome.tokens_per_step == 1.0


def test_every_output_is_committed_whole_at_every_fixed_length() -> None:
    trace = synthetic_trace(11, prompts=7, length=50, gamma_max=8)
    outcomes = replay_fixed_all(trace)
    for gamma, outcome in enumerate(outcomes):
        assert outcome.committed.tolist() == [prompt.output_tokens for prompt in trace.prompts]
        np.testing.assert_array_equal(outcome.steps, replay(trace, FixedLength(gamma)).steps)
    totals = [int(outcome.steps.sum()) for outcome in outcomes]
    assert totals[0] == trace.positions
    assert max(totals[1:]) < totals[0]


def test_a_limit_below_0_drafts_nothing() -> None:
    """As in the live loop."""
    for trace in (synthetic_trace(0, prompts=2, length=10, gamma_max=4), sampled_trace(0, 2, 10, 4)):
        outcome = replay(trace, FixedLength(-1))
        assert outcome.steps.sum() == trace.positions
        assert outcome.drafted.sum() == 0
    trace = synthetic_trace(0, prompts=2, length=10, gamma_max=4)
    steps = list(prompt_steps(trace, 0, draft_caps(trace), FixedLength(-1), greedy=True))
    assert len(steps) == 10


GAMMA_MAX = 4


@pytest.fixture(scope="module")
def trace() -> Trace:
    return sampled_trace(3, prompts=6, length=14, gamma_max=GAMMA_MAX)


def three_tokens(survival: list[float], signals: list[list[float]]) -> Trace:
    """One prompt of three tokens, drafts of up to two; ``signals`` are confidences of the refused drafts."""
    info = PromptInfo(0, "p", "code", "test", 5, 3, "length")
    wide = np.array(signals, np.float32)
    record = PromptRecord(
        info=info,
        token=np.array([1, 2, 3], np.int32),
        target_entropy=np.zeros(3, np.float32),
        draft_token=np.full((3, 2), 9, np.int32),
        confidence=wide,
        entropy=np.zeros_like(wide),
        margin=wide,
        accepted=np.zeros(3, np.int16),
        acceptance=np.array([0.7, 0.6, 0.5], np.float32),
        survival=np.array(survival, np.float32),
    )
    return make_trace([record], 3)


def expected(trace: Trace, policy: Policy, name: str) -> float:
    return sum(chance * getattr(replay(walk, policy), name)[0] for chance, walk in coin_walks(trace))


def test_a_fixed_length_by_hand() -> None:
    """Drafting one: from 0 to 1 if refused (1/2), to 2 if accepted (1/2); room for one token at 1, for none at 2."""
    trace = three_tokens([0.5, 0.25, 0.9], [[0.9, 0.9]] * 3)
    one, two = FixedLength(1), FixedLength(2)
    assert expected(trace, one, "steps") == pytest.approx(1 + 0.5 + (0.5 + 0.5 * 0.75))
    assert expected(trace, one, "drafted") == pytest.approx(1 + 0.5)
    assert expected(trace, one, "accepted") == pytest.approx(0.5 + 0.5 * 0.25)
    # Drafting two: all three tokens in one step with 1/2 * 1/4.
    assert expected(trace, two, "steps") == pytest.approx(1 + 0.5 * (1 + 0.75) + 0.5 * 0.75)
    # All of a replay's draws together come near.
    assert np.mean([replay(walk, one).steps for walk in draws(trace, 600)]) == pytest.approx(2.375, abs=0.1)
    assert replay(trace, one).committed.tolist() == [3]


def test_what_is_drafted_after_a_refused_token_counts() -> None:
    """At 0.5 the policy goes on after a first token, refused or not: it sees the signal of its distribution alone."""
    sure, unsure = [0.9, 0.9], [0.1, 0.9]
    stops = ConfidenceThreshold(0.5, 2)
    assert expected(three_tokens([0.5, 1, 1], [sure] * 3), stops, "drafted") == pytest.approx(2 + 0.5 * 1)
    assert expected(three_tokens([0.5, 1, 1], [unsure] * 3), stops, "drafted") == pytest.approx(1 + 0.5 * 1)


def test_rows_of_a_draw_are_those_of_a_greedy_trace(trace: Trace) -> None:
    walk = drawn(trace, 5)
    for row in range(trace.positions):
        accepted, count = int(walk.accepted[row]), int(walk.drafted[row])
        assert walk.draft_token[row, :accepted].tolist() == trace.token[row : row + accepted].tolist()
        if accepted < count:
            refused = trace.sampled.draft_token[row + accepted, 0]
            assert walk.draft_token[row, accepted] == refused != trace.token[row + accepted]
        assert_allclose(
            walk.confidence[row, : min(accepted + 1, count)],
            trace.sampled.confidence[row : row + accepted + 1, 0][:count],
        )
    assert (drawn(trace, 0).accepted == trace.accepted).all()
    assert (drawn(trace, 1).accepted != trace.accepted).any()
    part = select(trace, [False, True, False, True, False, False])
    assert (drawn(part, 5).draft_token == select(walk, [False, True, False, True, False, False]).draft_token).all()


@pytest.mark.parametrize("spec", ["fixed:3", "cumulative-confidence:0.3", "hf-heuristic", "vllm:refit=1,warm_up=1"])
def test_a_replay_is_the_mean_over_draws(trace: Trace, spec: str) -> None:
    """What a policy learns on one draw, in parts of it too, it does not know on the next."""
    costs = linear_costs(GAMMA_MAX)
    policy = make_policy(spec, GAMMA_MAX, costs)
    outcome = replay(trace, policy)
    walks = [replay(walk, make_policy(spec, GAMMA_MAX, costs)) for walk in draws(trace)]
    assert len(walks) == DRAWS
    for name in ("steps", "drafted", "accepted"):
        assert_allclose(getattr(outcome, name), np.mean([getattr(walk, name) for walk in walks], axis=0))
    assert (outcome.record.drafted == walks[0].record.drafted).all()
    assert_allclose(replay(trace, policy).steps, outcome.steps)


def test_hindsight_bounds_every_policy_and_rows_are_made_of_it(trace: Trace) -> None:
    costs = linear_costs(GAMMA_MAX)
    bound = np.mean([hindsight_optimum(walk, costs).seconds for walk in draws(trace)], axis=0)
    optimum = hindsight_optimum(trace, costs)
    assert_allclose(optimum.seconds, bound)
    fixed = replay_fixed_all(trace, costs)
    assert all((outcome.seconds >= bound - 1e-12).all() for outcome in fixed)
    assert_allclose(replay_lengths(trace, np.ones(trace.positions, np.int64), costs).seconds, fixed[1].seconds)
    best = best_fixed_gamma(trace, costs)
    assert fixed[best].tokens_per_second == max(outcome.tokens_per_second for outcome in fixed)
    row = next(row for row in evaluate(trace, costs, {"one": FixedLength(1)}) if row["task"] == "all")
    assert row["tokens_per_step"] == pytest.approx(fixed[1].tokens_per_step)
    assert row["tokens_per_second"] == pytest.approx(fixed[1].tokens_per_second)


def test_acceptance_by_depth_is_that_of_many_draws(trace: Trace) -> None:
    found = {row["depth"]: row for row in acceptance_by_depth(trace) if row["task"] == "all"}
    survival, inside = trace.sampled.survival, ~np.isnan(trace.sampled.acceptance)
    assert found[1]["alpha"] == pytest.approx(float(np.nanmean(trace.sampled.acceptance)))
    assert found[1]["positions"] == inside.sum()
    ends = set(trace.offsets[1:].tolist())
    pairs = [(survival[s], trace.sampled.acceptance[s + 1]) for s in range(trace.positions - 1) if s + 1 not in ends]
    weight, label = np.array([pair for pair in pairs if not np.isnan(pair).any()], np.float64).T
    assert found[2]["alpha"] == pytest.approx(weight @ label / weight.sum())


def test_narrowing_a_trace_is_recording_shorter_drafts(trace: Trace) -> None:
    cut, costs = narrow(trace, 2), replace(linear_costs(2), catch_up=(0.0, 0.01))
    for policy in (FixedLength(2), ConfidenceThreshold(0.6, 2)):
        for name in ("steps", "drafted", "accepted", "seconds"):
            assert_allclose(getattr(replay(cut, policy, costs), name), getattr(replay(trace, policy, costs), name))
    walk, wide = drawn(cut, 3), drawn(trace, 3)
    assert (walk.draft_token == wide.draft_token[:, :2]).all()
    assert (walk.accepted == np.minimum(wide.accepted, 2)).all()
