"""The loops: against transformers' ``generate``, their ends and limits, what policies are told, and bad logits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftgauge.core.errors import DraftgaugeError, ModelError, PromptError
from draftgauge.core.prompts import Prompt
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.decoding.recorder import Answer, RecordingPlan, record_answer, record_prompt
from draftgauge.decoding.settings import Stopper, StopStringWatch
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import ConfidenceThreshold
from draftgauge.verification import Sampling, entropy_bits
from markov import MarkovModel
from tiny import tiny_model, tiny_tokenizer, tokens
from wrapped_model import WrappedModel

VOCABULARY = 8
TARGET = MarkovModel.random(VOCABULARY, seed=0)
GREEDY = DecodingSettings(24)


def drafter(noise: float = 0.8, end_tokens: frozenset[int] = frozenset()) -> LanguageModelDrafter:
    """One whose greedy drafts are right about half of the time."""
    return LanguageModelDrafter(TARGET.noised(noise, seed=1), end_tokens)


class Scripted:
    """A policy that wants the given draft lengths in turn and remembers what it was told."""

    def __init__(self, limits: list[int], reads: Reads = frozenset(SignalName)) -> None:
        self.limits = limits
        self.reads = reads
        self.reset()

    def reset(self) -> None:
        self.steps = []
        self.asked = []

    def limit(self) -> int:
        return self.limits[len(self.steps) % len(self.limits)]

    def keep_drafting(self, signal) -> bool:
        self.asked.append(signal)
        return True

    def observe(self, step) -> None:
        self.steps.append(step)


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5),
    limits=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    max_new_tokens=st.integers(1, 20),
    end_tokens=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2),
    noise=st.sampled_from([0.0, 0.8, 3.0]),
    lookup=st.booleans(),
    reads=st.frozensets(st.sampled_from(SignalName)),
)
def test_equals_plain_decoding_whatever_is_drafted(prompt, limits, max_new_tokens, end_tokens, noise, lookup, reads):
    request = DecodingSettings(max_new_tokens, end_tokens=end_tokens)
    plain = plain_decode(TARGET, prompt, request)
    proposer = PromptLookupDrafter(end_tokens=end_tokens) if lookup else drafter(noise, end_tokens)
    policy = Scripted(limits, reads)
    streamed: list[tuple[int, str]] = []
    result = speculative_decode(
        TARGET, proposer, policy, prompt, request, on_commit=lambda t, o: streamed.extend(zip(t, o, strict=True))
    )
    assert result.tokens == plain.tokens
    assert result.finish == plain.finish
    assert streamed == list(zip(result.tokens, result.origins, strict=True))
    assert result.steps == policy.steps
    check_steps(result, limits, max_new_tokens)
    if result.finish == "length":
        assert TARGET.cached == [*prompt, *result.tokens[:-1]]


def check_steps(result, limits, max_new_tokens):
    """Draft lengths respect policy and limit; origins say what the steps say."""
    position = 0
    for index, step in enumerate(result.steps):
        assert step.drafted <= min(limits[index % len(limits)], max_new_tokens - position - 1)
        own = "plain" if step.drafted == 0 else "bonus" if step.accepted == step.drafted else "corrected"
        expected = [*["accepted"] * step.accepted, own]
        assert result.origins[position : position + step.committed] == expected[: step.committed]
        position += step.committed
        if position < len(result.tokens):
            assert step.committed == step.accepted + 1
    assert position == len(result.tokens)


def test_every_origin_and_acceptance_length_occurs():
    """Or else the equality above would not have put them to the test."""
    results = [
        speculative_decode(TARGET, drafter(noise), Scripted([3, 0]), [first, second], GREEDY)
        for noise in (0.8, 2.0)
        for first in range(3)
        for second in range(VOCABULARY)
    ]
    assert {origin for result in results for origin in result.origins} == {"accepted", "corrected", "bonus", "plain"}
    assert {step.accepted for result in results for step in result.steps if step.drafted == 3} == {0, 1, 2, 3}


@pytest.mark.parametrize("length", [4, 0])
def test_one_target_pass_a_step_and_no_draft_pass_without_speculation(length):
    target, proposer = MarkovModel.random(VOCABULARY, seed=0), drafter()
    result = speculative_decode(target, proposer, FixedLength(length), [3, 1, 2], GREEDY)
    assert target.passes == [2, *(1 + step.drafted for step in result.steps)]
    if not length:
        assert proposer.model.passes == [2]
        assert set(result.origins) == {"plain"}


def test_a_policy_that_needs_signals_gets_them_and_the_target_entropy():
    policy = Scripted([3])
    result = speculative_decode(TARGET, drafter(), policy, [1, 2], GREEDY)
    text, position = [1, 2, *result.tokens], 2
    for step in policy.steps:
        position += step.committed
        behind_last = TARGET.row(text[position - 3], text[position - 2])
        assert step.target_entropy == pytest.approx(float(entropy_bits(behind_last[None])))
        assert [signal.depth for signal in step.signals] == list(range(1, step.drafted + 1))
    assert len(policy.asked) == sum(max(step.drafted - 1, 0) for step in policy.steps)


def test_a_policy_that_needs_none_costs_none(monkeypatch):
    def refuse(*_):
        raise AssertionError("a signal was computed")

    monkeypatch.setattr("draftgauge.drafters.language_model.read_signals", refuse)
    monkeypatch.setattr("draftgauge.decoding.speculative.entropy_bits", refuse)
    policy = Scripted([3], NO_SIGNALS)
    result = speculative_decode(TARGET, drafter(), policy, [1, 2], GREEDY)
    assert result.tokens == plain_decode(TARGET, [1, 2], GREEDY).tokens
    assert policy.asked == []
    assert all(step.signals == [] or step.drafted == 0 for step in policy.steps)


class Oblivious:
    """A drafter that counts on, past any end token."""

    def prefill(self, context):
        self.last = context[-1]

    def propose(self, limit, keep_drafting, reads=OF_DRAFTED_TOKENS):
        return Draft([(self.last + 1 + i) % VOCABULARY for i in range(limit)])

    def commit(self, accepted, tokens):
        self.last = tokens[-1]


def test_an_end_token_inside_a_draft_drops_the_rest():
    request = DecodingSettings(20, end_tokens=frozenset({4}))
    seen = []
    target, six = MarkovModel.counting(VOCABULARY), FixedLength(6)
    result = speculative_decode(target, Oblivious(), six, [0], request, on_commit=lambda *of: seen.append(of))
    assert result.tokens == [1, 2, 3, 4]
    assert result.finish == "stop"
    assert result.origins == ["accepted"] * 4
    assert (result.steps[0].drafted, result.steps[0].accepted, result.steps[0].committed) == (6, 4, 4)
    assert seen == [(result.tokens, result.origins)]


def test_a_draft_that_ends_with_the_end_token_gets_no_bonus():
    request = DecodingSettings(20, end_tokens=frozenset({4}))
    proposer = LanguageModelDrafter(MarkovModel.counting(VOCABULARY), request.end_tokens)
    result = speculative_decode(MarkovModel.counting(VOCABULARY), proposer, FixedLength(6), [0], request)
    assert [(step.drafted, step.accepted, step.committed) for step in result.steps] == [(4, 4, 4)]


def test_a_stop_string_across_tokens_inside_a_draft():
    request = DecodingSettings(20, stop_strings=("34", "99"), detokenize=lambda tokens: "".join(map(str, tokens)))
    result = speculative_decode(MarkovModel.counting(VOCABULARY), Oblivious(), FixedLength(6), [0], request)
    assert result.tokens == [1, 2, 3, 4]
    assert result.finish == "stop"


@pytest.mark.parametrize("max_new_tokens", range(1, 6))
def test_the_limit_is_met_exactly(max_new_tokens):
    request = DecodingSettings(max_new_tokens)
    result = speculative_decode(MarkovModel.counting(VOCABULARY), Oblivious(), FixedLength(8), [0], request)
    assert result.tokens == list(range(1, max_new_tokens + 1))
    assert result.finish == "length"
    assert [(step.drafted, step.committed) for step in result.steps] == [(max_new_tokens - 1, max_new_tokens)]


def test_the_context_is_used_to_its_end_and_no_further():
    target = MarkovModel.random(VOCABULARY, seed=0, context=10)
    proposer = LanguageModelDrafter(MarkovModel(TARGET.noised(0.5, seed=1).table, context=6))
    result = speculative_decode(target, proposer, FixedLength(4), [1, 2, 3], DecodingSettings(7))
    assert result.tokens == plain_decode(TARGET, [1, 2, 3], DecodingSettings(7)).tokens
    for decode in (
        lambda: speculative_decode(target, proposer, FixedLength(4), [1, 2, 3], DecodingSettings(8)),
        lambda: plain_decode(target, [1, 2, 3], DecodingSettings(8)),
    ):
        with pytest.raises(DraftgaugeError, match=r"context longer than the model takes.*lower max_new_tokens by 1"):
            decode()


def generate(model, prompt: list[int], **arguments) -> list[int]:
    output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=24, pad_token_id=0, **arguments)
    return output[0, len(prompt) :].tolist()


def test_an_end_token_and_a_stop_string_end_the_output_where_generate_ends_it():
    model, tokenizer, prompt = tiny_model(), tiny_tokenizer(), tokens(10).tolist()
    cached = wrap(model, "lean")
    free = plain_decode(cached, prompt, DecodingSettings(24)).tokens
    first = free[5]
    ended = plain_decode(cached, prompt, DecodingSettings(24, end_tokens=frozenset({first})))
    assert repr(ended) == f"<Generation: {len(ended.tokens)} tokens, {len(ended.steps)} steps, stop>"
    assert ended.tokens == generate(model, prompt, eos_token_id=first) == free[: free.index(first) + 1]
    stop = tokenizer.decode(free[6:9])
    stopped = plain_decode(cached, prompt, DecodingSettings(24, stop_strings=(stop,), detokenize=tokenizer.decode))
    assert stopped.finish == "stop"
    assert stopped.tokens == generate(model, prompt, stop_strings=[stop], tokenizer=tokenizer, eos_token_id=None)
    assert tokenizer.decode(stopped.tokens).endswith(stop)


def test_requests_that_cannot_be_met():
    model = MarkovModel.random(5, seed=0, context=8)
    with pytest.raises(PromptError, match="empty"):
        plain_decode(model, [], DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match="Shorten the prompt or lower max_new_tokens by 3"):
        plain_decode(model, [1] * 7, DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match=r"Shorten the prompt by 4$"):
        plain_decode(model, [1] * 8, DecodingSettings(4))
    with pytest.raises(DraftgaugeError, match="generator"):
        plain_decode(model, [1], DecodingSettings(4, Sampling(0.5)))


PIECES = ["a", "b", "ab", " a", "ba\n", "", "é", "b b"]


def decode(tokens: list[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def decode_without_first_space(tokens: list[int]) -> str:
    """As tokenizers do that mark a word's beginning: the text's first space is not there."""
    return decode(tokens).removeprefix(" ")


@settings(max_examples=150, deadline=None)
@given(
    tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=120),
    strings=st.lists(st.text("ab é\n", min_size=3, max_size=6), min_size=1, max_size=2),
    decoder=st.sampled_from([decode, decode_without_first_space]),
)
def test_the_watch_finds_the_first_token_that_completes_a_stop_string(tokens, strings, decoder):
    watch = StopStringWatch(strings, decoder)
    found = next((i for i, token in enumerate(tokens) if watch.completed_by(token)), None)
    prefixes = (decoder(tokens[: i + 1]) for i in range(len(tokens)))
    expected = next((i for i, text in enumerate(prefixes) if any(string in text for string in strings)), None)
    assert found == expected


def test_an_output_ends_at_its_limit():
    stopper = Stopper(DecodingSettings(max_new_tokens=3))
    assert stopper.cut([5, 6]) == ([5, 6], None)
    assert stopper.remaining == 1
    assert stopper.cut([7]) == ([7], "length")


@pytest.mark.parametrize("limit", [9, 2])
def test_an_end_token_stays_also_at_the_limit_and_what_follows_is_dropped(limit):
    stopper = Stopper(DecodingSettings(limit, end_tokens=frozenset({6, 8})))
    assert stopper.cut([5, 6, 7, 8]) == ([5, 6], "stop")


def test_a_stop_string_stays_with_the_whole_token_that_completes_it():
    stopper = Stopper(DecodingSettings(max_new_tokens=9, stop_strings=("bb",), detokenize=decode))
    assert stopper.cut([0, 1]) == ([0, 1], None)
    assert stopper.cut([7, 0]) == ([7], "stop")  # "ab" + "b b"


def test_bad_settings():
    with pytest.raises(DraftgaugeError, match="max_new_tokens"):
        DecodingSettings(max_new_tokens=0)
    with pytest.raises(DraftgaugeError, match="empty"):
        DecodingSettings(stop_strings=("a", ""))
    with pytest.raises(DraftgaugeError, match="detokenizer"):
        Stopper(DecodingSettings(stop_strings=("a",)))


PROMPT = tokens(10, seed=3).tolist()
SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0), "top-p": Sampling(0.8, top_k=20, top_p=0.9)}
SAID = r"the logits of the target \(torch.float32\) are NaN or infinite from token 13 of the text on: .*float16"


class Overflowing(WrappedModel):
    """Gives other logits of a token from a place in the text on."""

    token = 5

    def __init__(self, model: CachedModel, value: float, place: int = 12) -> None:
        super().__init__(model)
        self.value, self.place = value, place

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        start = self.length
        logits = self.model.forward(tokens, last_only).clone()
        logits[max(0, self.place - start) :, self.token] = self.value
        return logits


def overflowing(value: float = math.nan) -> Overflowing:
    return Overflowing(wrap(tiny_model(seed=1)), value)


def seeded_drafter(sampling: Sampling, model: CachedModel | None = None) -> LanguageModelDrafter:
    model = model or wrap(tiny_model(seed=2))
    return LanguageModelDrafter(model, sampling=sampling, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_plain_and_speculative_decoding(sampling: Sampling, value: float) -> None:
    settings, generator = DecodingSettings(20, sampling), torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match=SAID):
        plain_decode(overflowing(value), PROMPT, settings, generator)
    for policy in (FixedLength(3), ConfidenceThreshold(0.1, 4)):
        with pytest.raises(ModelError, match=r"logits of the target .* from token 1[0-3] of the text on"):
            speculative_decode(overflowing(value), seeded_drafter(sampling), policy, PROMPT, settings, generator)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_drafter(sampling: Sampling) -> None:
    bad = Overflowing(wrap(tiny_model(seed=2)), math.nan)
    settings, generator = DecodingSettings(20, sampling), torch.Generator().manual_seed(0)
    with pytest.raises(ModelError, match="the logits of the draft model are NaN or infinite: "):
        speculative_decode(
            wrap(tiny_model(seed=1)), seeded_drafter(sampling, bad), FixedLength(3), PROMPT, settings, generator
        )


def test_masked_tokens_are_none_of_it() -> None:
    model = overflowing(-math.inf)
    free = plain_decode(wrap(tiny_model(seed=1)), PROMPT, DecodingSettings(20)).tokens
    model.token = free[9]
    assert free[9] not in plain_decode(model, PROMPT, DecodingSettings(20)).tokens[3:]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampled"])
def test_recording(sampling: Sampling) -> None:
    plan = RecordingPlan(DecodingSettings(8, sampling), 3)
    generator, prompt = torch.Generator().manual_seed(0), Prompt(0, "p0", "chat", "test", text="x")
    with pytest.raises(ModelError, match=SAID):
        record_prompt(overflowing(), seeded_drafter(sampling), prompt, PROMPT, plan, generator)
    bad = seeded_drafter(sampling, Overflowing(wrap(tiny_model(seed=2)), math.nan, 0))
    with pytest.raises(ModelError, match="the logits of the draft model are NaN or infinite from token 10"):
        record_prompt(wrap(tiny_model(seed=1)), bad, prompt, PROMPT, plan, generator)
    if sampling.greedy:
        drafter, answer = seeded_drafter(sampling), Answer([1, 2, 3, 4, 5, 6], "stop")
        with pytest.raises(ModelError, match=r"the logits of the target .* from token 10 of the text on"):
            record_answer(overflowing(), drafter, (prompt, PROMPT), answer, plan)
        record_answer(overflowing(), drafter, (prompt, PROMPT), Answer([1], "stop", torch.ones(1).numpy()), plan)
