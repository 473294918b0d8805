"""The speculative loop on a toy model: ends, limits, callbacks, what policies are told, and which passes are made."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft
from draftgauge.policies.fixed import FixedLength
from draftgauge.verification import entropy_bits
from markov import MarkovModel

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

    monkeypatch.setattr("draftgauge.drafters.draft_builder.read_signals", refuse)
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
