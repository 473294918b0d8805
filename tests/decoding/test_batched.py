"""Batches: every output is that of plain decoding, whatever its neighbours do, and a replay knows every step."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from batched_models import static_pair
from draftgauge.core.errors import DraftgaugeError, ModelError, TraceError
from draftgauge.decoding.batched import BatchPlan, BatchRun, batched_decode
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.language_model import LanguageModelDrafter
from draftgauge.judging.batch_rows import replay_batch
from draftgauge.models.engines.static import StaticModel, StaticRows
from draftgauge.policies.base import Step
from draftgauge.policies.batch import BatchPolicy, make_batch_policy
from draftgauge.traces.costs import BatchCosts
from draftgauge.traces.trace import Trace
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from recordings import recorded_trace
from tiny import tiny_model, tokens

GAMMA_MAX = 4
SETTINGS = DecodingSettings(24, end_tokens=frozenset({7, 20, 41}))
LENGTHS = (3, 17, 9, 30, 5, 12)  # of the prompts
PROMPTS = [tokens(length, seed=length).tolist() for length in LENGTHS]
POLICIES = (
    *("no-draft", "fixed:1", "fixed:4", "hf-confidence:threshold=0.2", "hf-heuristic"),
    *("sglang-adaptive:warm_up=1,every=1", "stopping"),
)
CAPACITY = max(LENGTHS) + SETTINGS.max_new_tokens


def batch_costs(largest: int = 4, gamma_max: int = GAMMA_MAX) -> BatchCosts:
    """A pass takes a second, a tenth more for every token, and a little for the context."""
    batches, contexts = tuple(range(1, largest + 1)), (8, 40)

    def table(width: int, share: float) -> tuple[tuple[tuple[float, ...], ...], ...]:
        return tuple(
            tuple(tuple(share * (1 + 0.1 * b * k + 0.001 * c) for k in range(1, width + 1)) for c in contexts)
            for b in batches
        )

    return BatchCosts(batches, contexts, table(gamma_max + 1, 1.0), table(2, 0.2), tuple(0.001 * b for b in batches))


@pytest.fixture(scope="module")
def models() -> tuple[StaticModel, StaticModel]:
    return static_pair()


@pytest.fixture(scope="module")
def plain(models: tuple[StaticModel, StaticModel]) -> list[list[int]]:
    return [plain_decode(models[0], prompt, SETTINGS).tokens for prompt in PROMPTS]


@pytest.fixture(scope="module")
def trace(models: tuple[StaticModel, StaticModel]) -> Trace:
    drafter = LanguageModelDrafter(models[1], SETTINGS.end_tokens)
    return recorded_trace(models[0], drafter, PROMPTS, SETTINGS, GAMMA_MAX)


def make(spec: str, batch: int) -> BatchPolicy:
    return make_batch_policy(spec, batch, GAMMA_MAX, LinearCosts(GAMMA_MAX))


def decode(
    models: tuple[StaticModel, StaticModel], policy: BatchPolicy, plan: BatchPlan, prompts: list[list[int]] = PROMPTS
) -> BatchRun:
    target, draft = (StaticRows(model, plan.batch, CAPACITY) for model in models)
    return batched_decode(target, draft, policy, prompts, SETTINGS, plan)


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("batch", [2, 3])
def test_greedy_outputs_are_those_of_plain_decoding(
    models: tuple[StaticModel, StaticModel], plain: list[list[int]], spec: str, batch: int
) -> None:
    run = decode(models, make(spec, batch), BatchPlan(batch, GAMMA_MAX))
    assert [output.prompt for output in run.outputs] == list(range(len(PROMPTS)))
    assert [output.tokens for output in run.outputs] == plain
    assert all(output.finished for output in run.outputs)
    assert {len(output) for output in plain} > {SETTINGS.max_new_tokens}  # some ended early: ragged in length


@pytest.mark.parametrize("vocabulary", [60, 130])
def test_a_draft_of_fewer_or_more_tokens_than_the_targets(
    models: tuple[StaticModel, StaticModel], plain: list[list[int]], vocabulary: int
) -> None:
    other = StaticModel(tiny_model("llama", seed=0, vocab_size=vocabulary))
    run = decode((models[0], other), make("fixed:4", 3), BatchPlan(3, GAMMA_MAX))
    assert [output.tokens for output in run.outputs] == plain


class Watched:
    """A policy, and the steps that it was told of."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.steps: list[tuple[int, int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def observe(self, slot: int, step: Step) -> None:
        self.steps.append((slot, step.drafted, step.accepted, step.committed))
        self.policy.observe(slot, step)


@pytest.mark.parametrize("spec", POLICIES)
@pytest.mark.parametrize("batch", [1, 4])
def test_replay_takes_the_same_steps_at_the_same_price(
    models: tuple[StaticModel, StaticModel], trace: Trace, spec: str, batch: int
) -> None:
    """And policies are told the same, also where an end token was drafted, which ends a proposal but no drafting."""
    queue, costs = [0, 1, 2, 3, 4, 5, 2, 0], batch_costs()
    live, again = (Watched(make(spec, batch)) for _ in range(2))
    run = decode(models, live, BatchPlan(batch, GAMMA_MAX, False, True), [PROMPTS[i] for i in queue])
    replayed = replay_batch(trace, again, costs, batch, queue)
    assert live.steps == again.steps
    assert any(end in trace.draft_token for end in SETTINGS.end_tokens)
    steps = [step for output in run.outputs for step in output.steps]
    passes = [each for step in run.passes for each in step]
    assert replayed.steps == len(run.seconds)
    assert replayed.committed == run.committed == sum(step.committed for step in steps)
    assert replayed.accepted == sum(step.accepted for step in steps)
    assert replayed.drafted == sum(each.rows for each in passes if each.kind == "draft")
    priced = 0.0
    for each in passes:
        seconds = costs.verify_seconds if each.kind == "verify" else costs.draft_seconds
        priced += float(seconds(each.rows, each.tokens, each.context))
        priced += float(costs.signal_seconds(each.rows)) if each.signals else 0.0
    assert replayed.seconds == pytest.approx(priced, rel=1e-9)


def test_the_batch_shrinks_where_drafts_end(models: tuple[StaticModel, StaticModel]) -> None:
    run = decode(models, make("hf-confidence:threshold=0.2", 4), BatchPlan(4, GAMMA_MAX, timed=True))
    rows = [[p.rows for p in step if p.kind == "draft"] for step in run.passes]
    assert all(later <= earlier for step in rows for earlier, later in itertools.pairwise(step))
    assert any(step and step[-1] < step[0] for step in rows)
    widths = {p.tokens / p.rows for step in run.passes for p in step if p.kind == "verify"}
    assert any(width % 1 for width in widths)  # and is verified without padding


def test_what_a_batch_cannot_do(models: tuple[StaticModel, StaticModel], trace: Trace) -> None:
    rows = [StaticRows(model, 2, CAPACITY) for model in models]
    fixed = make("fixed:2", 2)
    sampled = DecodingSettings(8, Sampling(1.0))
    with pytest.raises(DraftgaugeError, match="batches are decoded greedily"):
        batched_decode(rows[0], rows[1], fixed, PROMPTS, sampled, BatchPlan(2, 4))
    with pytest.raises(DraftgaugeError, match="prompt 1 has 60 tokens"):
        batched_decode(rows[0], rows[1], fixed, [PROMPTS[0], [1] * 60], SETTINGS, BatchPlan(2, 4))
    with pytest.raises(DraftgaugeError, match="at least one request"):
        batched_decode(rows[0], rows[1], fixed, [], SETTINGS, BatchPlan(2, 4))
    with pytest.raises(ModelError, match="exceeds the 128 that"):
        StaticRows(models[0], 2, 10_000)
    with pytest.raises(TraceError, match="needs as many prompts"):
        replay_batch(trace, fixed, batch_costs(), 2, [0])


def test_what_stands_behind_a_stop_string_was_not_accepted(
    models: tuple[StaticModel, StaticModel], plain: list[list[int]]
) -> None:
    target = models[0]
    words = replace(
        SETTINGS, stop_strings=(f" {plain[0][1]} ",), detokenize=lambda text: "".join(f" {t} " for t in text)
    )
    rows = [StaticRows(target, 2, CAPACITY) for _ in range(2)]  # so that all that is drafted is right
    run = batched_decode(*rows, make("fixed:4", 2), PROMPTS[:2], words, BatchPlan(2, GAMMA_MAX))
    usual = [plain_decode(target, prompt, words).tokens for prompt in PROMPTS[:2]]
    assert [output.tokens for output in run.outputs] == usual
    (step,) = run.outputs[0].steps
    assert (step.drafted, step.accepted, step.committed) == (4, 2, 2)
