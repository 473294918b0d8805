"""Batches, and drafts that go on with tokens of the text: outputs of plain decoding, replayed as run."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from batched_models import static_pair
from draftgauge.core.errors import DraftgaugeError, ModelError, TraceError
from draftgauge.core.signals import SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.decoding.batched import BatchPlan, BatchRun, batched_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.judging.batch_rows import replay_batch
from draftgauge.judging.replay import replay
from draftgauge.models.engines.static import StaticModel, StaticRows
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Step
from draftgauge.policies.batch import BatchPolicy, make_batch_policy
from draftgauge.policies.ngrams import NgramIndex, StoredTexts, with_stored
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import BatchCosts
from draftgauge.traces.trace import Trace
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from markov import Enumerator, MarkovModel, assert_same_law, law_of_model
from recordings import assert_same_steps, recorded_trace
from tiny import noisy, tiny_model, tokens

GAMMA_MAX = 4
SETTINGS = DecodingSettings(24, end_tokens=frozenset({7, 20, 41}))
LENGTHS = (3, 17, 9, 30, 5, 12)  # of the prompts
PROMPTS = [tokens(length, seed=length).tolist() for length in LENGTHS]
POLICIES = ("no-draft", "fixed:1", "fixed:4", "hf-confidence:threshold=0.2", "hf-heuristic", "stopping")
POLICIES += ("sglang-adaptive:warm_up=1,every=1",)
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


UNUSED = torch.Generator()  # the enumerator draws instead


class DraftsThenCopies:
    """Drafts up to some tokens, ends drafts by a coin, leaves out some last ones by what they are, and appends what the
    text predicts after them.
    """

    reads = frozenset({SignalName.TEXT})

    def __init__(self, limits: tuple[int, ...], tokens: int, ends: float = 0.0, drops_at: int = 0) -> None:
        self.limits, self.tokens, self.ends, self.drops_at = limits, tokens, ends, drops_at
        self.index = NgramIndex()

    def reset(self) -> None:
        self.index.reset()
        self.random = random.Random(0)
        self.step = 0

    def read(self, prompt_tokens) -> None:
        self.index.extend(prompt_tokens)

    def limit(self) -> int:
        self.drafted: list[int] = []
        self.left_out = False
        self.step += 1
        return self.limits[self.step % len(self.limits)]

    def keep_drafting(self, signal) -> bool:
        assert signal.depth == len(self.drafted) + 1
        self.drafted.append(signal.token)
        return self.random.random() >= self.ends

    def drops_last(self) -> bool:
        """Every token that a number divides, or none."""
        self.left_out = bool(self.drops_at) and self.drafted[-1] % self.drops_at == 0
        return self.left_out

    def extend(self, room: int) -> list[int]:
        tail, tokens = [*self.index.text, *(self.drafted[:-1] if self.left_out else self.drafted)], []
        while len(tokens) < min(room, self.tokens) and (match := self.index.match([*tail, *tokens])) is not None:
            tokens.append(match.token)
        return tokens

    def observe(self, step) -> None:
        assert step.drafted == len(self.drafted)
        assert step.dropped == int(self.left_out)
        assert step.proposed == step.drafted + step.appended - step.dropped
        self.index.extend(step.tokens)


MIXED = [
    (2, 4, (1,), 2, Sampling(0.7)),
    (2, 4, (0, 2), 3, Sampling(1.0)),
    (3, 3, (1,), 1, Sampling(1.0, top_k=2)),
    (3, 3, (0, 1), 2, Sampling(1.5, top_p=0.8)),
]
WAYS = [(True, 1), (False, 0), (False, 1), (False, 2)]  # of drawn tokens none is left out


@pytest.mark.parametrize(("case", "way"), [((2, 4, (0,), 2, Sampling(1.0)), WAYS[2]), *itertools.product(MIXED, WAYS)])
def test_sampled_decoding_has_the_targets_law(monkeypatch, case, way):
    (vocabulary, count, limits, tokens_, sampling), (drawn, drops_at) = case, way
    target = MarkovModel.random(vocabulary, seed=vocabulary)
    model = target.noised(1.0, seed=9)
    drafter = LanguageModelDrafter(model, sampling=sampling if drawn else None, generator=UNUSED)
    policy, prompt = DraftsThenCopies(limits, tokens_, drops_at=drops_at), [1, 0, 1, 1, 0, 0, 1]
    appended = dropped = 0

    def program():
        nonlocal appended, dropped
        result = speculative_decode(target, drafter, policy, prompt, DecodingSettings(count, sampling), UNUSED)
        appended += sum(step.appended for step in result.steps)
        dropped += sum(step.dropped for step in result.steps)
        return tuple(result.tokens)

    assert_same_law(Enumerator(monkeypatch).law(program), law_of_model(target, prompt, count, sampling))
    assert appended > 0
    if drawn or drops_at != 2:  # which tokens are drafted decides where some of them are left out
        assert (dropped > 0) == (drops_at > 0 and not drawn and max(limits) > 0)


def test_greedy_output_and_steps_are_those_of_plain_decoding_and_of_replay():
    """Every mixture: drafts ended by the policy, by its limit, by the end of the output; with and without a copy."""
    settings, gamma_max = DecodingSettings(60), 8
    prompts = [tokens(11, seed=1).tolist(), tokens(6, seed=3).tolist() * 3]
    target, draft = wrap(tiny_model()), noisy(tiny_model(), 0.1)
    mixed = 0
    for drafter in (LanguageModelDrafter(wrap(draft)), PromptLookupDrafter()):
        trace = recorded_trace(target, drafter, prompts, settings, gamma_max)
        told, commit = list[int](), drafter.commit
        drafter.commit = lambda count, _, told=told, commit=commit: told.append(count) or commit(count, _)
        for limits, drops_at in (((0,), 0), ((2,), 0), ((3, 0, 5), 0), ((3, 0, 5), 1), ((4,), 3)):
            policy = DraftsThenCopies(limits, 3, ends=0.3, drops_at=drops_at)
            runs = [speculative_decode(target, drafter, policy, prompt, settings) for prompt in prompts]
            for run, prompt in zip(runs, prompts, strict=True):
                assert run.tokens == plain_decode(target, prompt, settings).tokens
                assert run.origins.count("text") == sum(step.accepted_text for step in run.steps)
                assert run.origins.count("accepted") == sum(step.accepted - step.accepted_text for step in run.steps)
            live = [step for run in runs for step in run.steps]
            assert told[-len(live) :] == [step.accepted - step.accepted_text for step in live]  # no copies
            assert_same_steps(live, replay(trace, DraftsThenCopies(limits, 3, ends=0.3, drops_at=drops_at)))
            mixed += sum(step.drafted > 0 and step.accepted_text > 0 for step in live)
    assert mixed > 5


@pytest.mark.parametrize("limits", [(0,), (2,)])
def test_what_is_copied_behind_an_end_token_was_not_accepted(limits):
    """A prompt that holds end tokens predicts what follows them; the output ends there, live as in replay."""
    target, drafter = MarkovModel.counting(4), LanguageModelDrafter(MarkovModel.counting(4))
    settings, prompt = DecodingSettings(20, end_tokens=frozenset({3})), [0, 1, 2, 3, 0, 1, 2, 3, 0]
    trace = recorded_trace(target, drafter, [prompt], settings, 8)
    live = speculative_decode(target, drafter, DraftsThenCopies(limits, 6), prompt, settings)
    assert live.tokens == [1, 2, 3]
    assert live.origins.count("text") == sum(step.accepted_text for step in live.steps) > 0
    assert [step.accepted for step in live.steps] == [3]
    assert_same_steps(live.steps, replay(trace, DraftsThenCopies(limits, 6)))


def test_with_stored_texts_greedy_output_is_plain_decodings_and_steps_are_those_of_replay():
    """The stored texts hold other outputs and, as it may happen, the very one, so that long drafts come from them."""
    settings, gamma_max = DecodingSettings(60), 6
    prompts = [tokens(11, seed=1).tolist(), tokens(6, seed=3).tolist() * 3, tokens(3, seed=4).tolist()]
    target, drafter = wrap(tiny_model()), LanguageModelDrafter(wrap(tiny_model(seed=2)))
    plain = [plain_decode(target, prompt, settings).tokens for prompt in prompts]
    trace = recorded_trace(target, drafter, prompts, settings, gamma_max)
    stored = StoredTexts([tokens(40, seed=7).tolist(), plain[0], plain[1][:30], [*plain[2][:-1], 5]])
    costs = LinearCosts(drafting=0.1, verifying=0.02)
    from_text = []
    for make in (
        lambda: make_policy("two-source", gamma_max, costs),
        lambda: make_policy("lookup:least=1,tokens=5", gamma_max),
        lambda: make_policy("lookup-else-stopping:least=2", gamma_max, costs),
    ):
        policies = [make(), make(), make()]
        with_stored(policies[1:], stored)
        runs = [speculative_decode(target, drafter, policies[1], prompt, settings) for prompt in prompts]
        assert [run.tokens for run in runs] == plain
        live = [step for run in runs for step in run.steps]
        replayed = replay(trace, policies[2])
        assert_same_steps(live, replayed)
        from_text.append((int(replayed.accepted_text.sum()), int(replay(trace, policies[0]).accepted_text.sum())))
    assert all(with_ > without for with_, without in from_text), from_text
