"""The hindsight optimum is the least time over all choices, and so no policy beats it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curves import linear_costs, random_costs
from draftgauge.core.errors import TraceError
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import replay, replay_fixed_all
from draftgauge.policies import make_policy
from draftgauge.policies.ngrams import NgramIndex
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace
from synthetic import repeating_trace, replay_steps, sampled_trace, synthetic_trace

SPECS = ("no-draft", "fixed:2", "hf-heuristic", "hf-confidence", "hf-confidence:adaptive=true", "cumulative-confidence")
examples = settings(max_examples=50, deadline=None)


def every_path(trace: Trace, prompt: int, costs: CostCurve, text: bool) -> list[float]:
    """Modelled seconds of every sequence of drafts that decodes the prompt: the tree of choices, enumerated.

    Drafts hold the drafter's tokens and then, with ``text``, those that a live index predicts.
    """
    first, end = int(trace.offsets[prompt]), int(trace.offsets[prompt + 1])
    info = trace.prompts[prompt]
    output = trace.token[first:end].tolist()

    def agreed(proposed: list[int], position: int) -> int:
        count = 0
        while count < len(proposed) and position + count < len(output) and proposed[count] == output[position + count]:
            count += 1
        return count

    @cache
    def paths(position: int, backlog: int) -> tuple[float, ...]:
        if position == len(output):
            return (0.0,)
        index = NgramIndex()
        index.extend([*info.prompt_token, *output[:position]])
        room = trace.max_new_tokens - position - 1
        available = [token for token in trace.draft_token[first + position].tolist() if token >= 0]
        found: set[float] = set()
        for gamma in range(min(trace.gamma_max, len(available), room) + 1):
            for appended in range(min(trace.gamma_max, room) - gamma + 1 if text else 1):
                draft = available[:gamma]
                for _ in range(appended):
                    match = index.match([*index.text, *draft])
                    draft.append(-1 if match is None else match.token)  # without a match any wrong token will do
                accepted = agreed(draft, position)
                if gamma == 0:  # or as lookup copies
                    accepted = max(accepted, agreed(index.continuation(appended, least=1), position))
                here = float(costs.step_seconds(gamma, info.prompt_tokens + position, appended=appended))
                here += float(costs.rollback_seconds(len(draft), accepted))
                if gamma:
                    here += costs.catch_up[min(backlog, len(costs.catch_up)) - 1]
                    kept = min(accepted, gamma - 1) if costs.keeps_drafted else 0
                    left = accepted + 1 - kept
                else:
                    left = backlog + accepted + 1
                after = min(position + accepted + 1, len(output))
                found |= {here + rest for rest in paths(after, min(left, len(costs.catch_up)))}
        return tuple(found)

    return list(paths(0, 1))


@examples
@pytest.mark.parametrize("text", [False, True])
@given(seed=st.integers(0, 100_000), length=st.integers(1, 6), gamma_max=st.integers(1, 3))
def test_dynamic_programming_equals_enumeration(seed: int, length: int, gamma_max: int, text: bool) -> None:
    trace = synthetic_trace(seed, prompts=3, length=length + 1, gamma_max=gamma_max)
    if text:
        trace = repeating_trace(seed, prompts=2, length=length, gamma_max=gamma_max, vocabulary=2)
    costs = random_costs(seed, gamma_max)
    best = hindsight_optimum(trace, costs, text=text)
    for prompt in range(len(trace.prompts)):
        least = min(every_path(trace, prompt, costs, text))
        assert best.seconds[prompt] == pytest.approx(least, rel=1e-12)


@examples
@given(seed=st.integers(0, 100_000), length=st.integers(1, 60), gamma_max=st.integers(2, 8))
def test_no_policy_beats_hindsight_on_any_prompt(seed: int, length: int, gamma_max: int) -> None:
    trace = synthetic_trace(seed, prompts=4, length=length, gamma_max=gamma_max)
    costs = random_costs(seed, gamma_max)
    least = hindsight_optimum(trace, costs).seconds
    outcomes = [replay(trace, make_policy(spec, gamma_max), costs) for spec in SPECS] + replay_fixed_all(trace, costs)
    for outcome in outcomes:
        assert (least <= outcome.seconds * (1 + 1e-12)).all()


def test_the_best_path_has_the_seconds_of_its_steps() -> None:
    trace = synthetic_trace(7, prompts=5, length=80, gamma_max=6)
    costs = linear_costs(6)
    best = hindsight_optimum(trace, costs)
    record = best.record
    assert best.committed.tolist() == [prompt.output_tokens for prompt in trace.prompts]
    rows = record.rows(trace)
    np.testing.assert_allclose(replay_steps(trace, rows, record.drafted, costs).seconds, best.seconds)
    # Where longer drafts cost more, nothing is drafted in vain.
    np.testing.assert_array_equal(record.drafted, record.accepted)


def test_a_cost_curve_measured_less_far_is_refused() -> None:
    with pytest.raises(TraceError, match=r"measured for gamma 0\.\.2"):
        hindsight_optimum(synthetic_trace(1, prompts=2, length=9, gamma_max=4), linear_costs(2))


def test_the_text_is_no_source_of_sampled_decoding() -> None:
    trace = sampled_trace(1, prompts=2, length=9, gamma_max=3)
    with pytest.raises(TraceError, match="sampled decoding does not hold"):
        hindsight_optimum(trace, linear_costs(3), text=True)
