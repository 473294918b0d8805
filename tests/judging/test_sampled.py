"""Replay on a trace of sampled decoding: walks drawn from it, by hand and by count, and what is made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from curves import linear_costs
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.judging.evaluate import evaluate
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import best_fixed_gamma, replay, replay_fixed_all, replay_lengths
from draftgauge.policies import make_policy
from draftgauge.policies.base import Policy
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import ConfidenceThreshold
from draftgauge.traces.run import make_trace
from draftgauge.traces.sampled import DRAWS, drawn, draws
from draftgauge.traces.trace import PromptInfo, PromptRecord, Trace, narrow, select
from synthetic import coin_walks, sampled_trace

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
