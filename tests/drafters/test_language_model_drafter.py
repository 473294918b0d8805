"""Caches and n-gram indices of drafters stay in step with the committed text, and no pass is wasted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.signals import NO_SIGNALS, SignalName
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import Drafter, LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft, LoadOptions, backlog_of, keeps_drafted
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.judging.replay import backlogs
from draftgauge.models.taps import attach_taps
from draftgauge.policies.base import PolicyBase, Step
from draftgauge.policies.lookup import TextLookup
from draftgauge.policies.ngrams import LEAST, LONGEST, NgramIndex
from draftgauge.traces.costs import CostCurve
from draftgauge.verification import Sampling, probabilities, signals
from markov import MarkovModel
from reuse_nets import net_for
from reuse_nets import target as tiny_target

VOCABULARY = 4


def greedy_continuation(model: MarkovModel, text: list[int], count: int) -> list[int]:
    text = list(text)
    start = len(text)
    for _ in range(count):
        text.append(int(model.row(text[-2] if len(text) > 1 else 0, text[-1]).argmax()))
    return text[start:]


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, VOCABULARY - 1)), max_size=8),
)
def test_proposals_continue_the_committed_text(prompt, steps):
    model = MarkovModel.random(VOCABULARY, seed=1)
    drafter = LanguageModelDrafter(model)
    drafter.prefill(prompt)
    text = list(prompt)
    for limit, accepted, own in steps:
        proposed = drafter.propose(limit, None).tokens
        assert proposed == greedy_continuation(model, text, limit)
        accepted = min(accepted, len(proposed))
        committed = [*proposed[:accepted], own]
        drafter.commit(accepted, committed)
        text += committed
        assert model.cached == text[: model.length]
        assert model.length < len(text)


def test_one_pass_a_token_and_none_without_speculation():
    model = MarkovModel.random(VOCABULARY, seed=1)
    drafter = LanguageModelDrafter(model)
    drafter.prefill([1, 2, 3])
    assert model.passes == [2]
    drafter.commit(0, [0])
    drafter.commit(0, [1])
    assert model.passes == [2]
    proposed = drafter.propose(3, None).tokens
    assert model.passes == [2, 3, 1, 1]  # the committed tokens at once, then two of the three drafted
    drafter.commit(3, [*proposed, 2])
    drafter.propose(1, None)
    assert model.passes == [2, 3, 1, 1, 2]
    assert drafter.propose(0, None).tokens == []
    assert model.passes == [2, 3, 1, 1, 2]


def test_committing_less_than_was_accepted():
    model = MarkovModel.random(VOCABULARY, seed=1)
    drafter = LanguageModelDrafter(model)
    drafter.prefill([1])
    proposed = drafter.propose(4, None).tokens
    drafter.commit(2, proposed[:2])  # the output ended inside the step
    assert model.cached == [1, *proposed[:2]]


def test_keep_drafting_sees_the_signals_and_stops():
    model = MarkovModel.random(VOCABULARY, seed=2)
    drafter = LanguageModelDrafter(model)
    seen = []

    def keep(signal):
        seen.append(signal)
        return len(seen) < 3

    drafter.prefill([0, 1])
    draft = drafter.propose(5, keep)
    assert draft.tokens == greedy_continuation(model, [0, 1], 3)
    assert draft.signals == seen
    text = [0, 1]
    for depth, signal in enumerate(draft.signals, start=1):
        expected = torch.cat(signals(model.row(text[-2], text[-1])[None])).tolist()
        assert signal.depth == depth
        assert list(signal[1:4]) == pytest.approx(expected)
        text.append(draft.tokens[depth - 1])


@pytest.mark.parametrize("reads_every_token", [True, False], ids=["on the CPU", "on an accelerator"])
@pytest.mark.parametrize("asks", [True, False])
def test_a_draft_ends_with_an_end_token(asks, reads_every_token):
    model = MarkovModel.counting(VOCABULARY)
    drafter = LanguageModelDrafter(
        model, end_tokens=frozenset({3}), sampling=Sampling(0.01), generator=torch.Generator()
    )
    drafter._builder._reads_every_token = reads_every_token
    drafter.prefill([0])
    draft = drafter.propose(8, (lambda signal: True) if asks else None)
    assert draft.tokens == [1, 2, 3]
    assert draft.probabilities.shape == (3, VOCABULARY)
    assert len(draft.signals) == (3 if asks else 0)
    drafter.commit(2, [1, 2, 0])  # the target went on
    assert model.cached == [0, 1, 2]
    assert drafter.propose(2, None).tokens == [1, 2]


def test_sampled_drafts_carry_their_distributions():
    model = MarkovModel.random(VOCABULARY, seed=4)
    sampling = Sampling(0.8, top_k=3)
    drafter = LanguageModelDrafter(model, sampling=sampling, generator=torch.Generator().manual_seed(0))
    drafter.prefill([2, 1])
    draft = drafter.propose(4, None)
    text = [2, 1, *draft.tokens]
    expected = torch.stack([probabilities(model.row(text[i], text[i + 1]), sampling) for i in range(4)])
    torch.testing.assert_close(draft.probabilities, expected)
    assert all(expected[i, token] > 0 for i, token in enumerate(draft.tokens))
    greedy = LanguageModelDrafter(model)
    greedy.prefill([2, 1])
    assert greedy.propose(4, None).probabilities is None


def test_nothing_is_drafted_past_the_context():
    model = MarkovModel.random(VOCABULARY, seed=1, context=6)
    drafter = LanguageModelDrafter(model)
    drafter.prefill([0, 1, 2, 3])
    assert len(drafter.propose(8, None).tokens) == 3  # the last drafted token need not be taken in
    assert model.length == 6
    drafter.commit(0, [1, 1, 1])
    assert drafter.propose(8, None).tokens == []
    drafter.prefill([0] * 9)
    assert drafter.propose(8, None).tokens == []


@pytest.mark.parametrize(
    ("source", "engine", "expected"),
    [
        ("draft.gguf", "lean", ("uncompressed", "cpu", "auto")),  # a file is on the CPU, as it was compressed
        ("draft.gguf", "gguf-fast", ("uncompressed", "cpu", "gguf-fast")),
        ("draft", "lean", ("bf16", "cuda:0", "lean")),
        ("draft", "gguf-fast", ("bf16", "cuda:0", "auto")),
    ],
)
def test_a_draft_in_a_file_is_loaded_as_such_beside_any_target(
    source: str, engine: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    model = SimpleNamespace(spec=SimpleNamespace(family="llama", engine="lean", context=8))
    monkeypatch.setattr("draftgauge.drafters.language_model.is_gguf", lambda name: str(name).endswith(".gguf"))
    load = "draftgauge.drafters.language_model.load_model"
    monkeypatch.setattr(load, lambda _, *options: asked.extend(options) or model)
    target = SimpleNamespace(spec=SimpleNamespace(device=torch.device("cuda:0")))
    LanguageModelSource.load(source, target, LoadOptions(engine=engine, compression="bf16"))  # type: ignore[arg-type]
    assert tuple(map(str, asked[:3])) == expected


ROW = ((1.0,) * 5,)
COSTS = CostCurve((10,), ROW, ROW, (1.0,), "uncompressed", "cpu", "float32", catch_up=(0.0,) * 64)


class AnyLength(PolicyBase):
    """Any length, at random, with runs of steps that draft nothing."""

    reads = NO_SIGNALS

    def __init__(self) -> None:
        self.random = random.Random(0)

    def limit(self) -> int:
        return self.random.choice([0, 0, 1, 1, 2, 4])


class CopiesOrDrafts(AnyLength):
    """Drafts any length, and appends what followed the last token the last time."""

    reads = frozenset({SignalName.TEXT})

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.index = NgramIndex()
        self.index.extend(prompt_tokens)

    def extend(self, room: int) -> list[int]:
        return self.index.continuation(min(room, 3), least=1)

    def observe(self, step: Step) -> None:
        self.index.extend(step.tokens)


class Watched:
    """Notes the backlog before every proposal."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.noted: list[int] = []
        self.prefill, self.commit = drafter.prefill, drafter.commit

    def propose(self, limit: int, *options: object) -> Draft:
        self.noted.append(backlog_of(self.drafter))
        return self.drafter.propose(limit, *options)  # type: ignore[arg-type]


def check(
    target: object, drafter: Drafter, prompts: list[list[int]], among: set[int], policy: PolicyBase | None = None
) -> int:
    """Every proposal after the first finds the backlog that replay computes from the steps; steps that only copied."""
    compared, copied, policy = [], 0, policy or AnyLength()
    costs = replace(COSTS, keeps_drafted=keeps_drafted(drafter))
    for prompt in prompts:
        watched = Watched(drafter)
        steps = speculative_decode(target, watched, policy, prompt, DecodingSettings(60)).steps  # type: ignore[arg-type]
        columns = np.array([(step.drafted, step.accepted) for step in steps], np.int64).T
        computed = backlogs(np.zeros(len(steps), np.int64), *columns, costs)[columns[0] > 0].tolist()
        assert watched.noted[1:] == computed[1:]  # before the first, a drafter may have taken in the whole prompt
        compared += computed[1:]
        copied += sum(step.accepted > 0 for step in steps if not step.drafted)
    assert set(compared) >= among
    return copied


@pytest.mark.parametrize(("noise", "among"), [(0.0, {2, 3, 4}), (0.8, {1, 2, 3, 4})])
def test_a_language_model_takes_in_its_own_token_and_the_last_one_of_a_draft_accepted_whole(
    noise: float, among: set[int]
) -> None:
    target = MarkovModel.random(8, seed=0)
    check(target, LanguageModelDrafter(target.noised(noise, seed=1)), [[3, 1, 2], [1, 1], [5, 4]], among)


def test_a_drafter_that_reads_its_target_takes_in_all_committed_tokens() -> None:
    target = tiny_target()
    net = net_for(target, "hidden")
    taps = attach_taps(target, net.config.tap_plan)
    check(target, ReuseDrafter(net, target, taps), [[3, 1, 2], [1, 1, 4, 4], [5, 4, 0]], {1, 2, 3})


def test_prompt_lookup_has_nothing_to_take_in() -> None:
    target = MarkovModel.random(8, seed=0)
    watched = Watched(PromptLookupDrafter())
    speculative_decode(target, watched, AnyLength(), [3, 1, 2, 3, 1, 2], DecodingSettings(40))  # type: ignore[arg-type]
    assert set(watched.noted) == {0}


def test_a_step_that_only_copies_leaves_all_that_it_commits_to_take_in() -> None:
    target = MarkovModel.random(3, seed=0)
    drafters = [LanguageModelDrafter(target.noised(noise, seed=1)) for noise in (0.0, 0.8)]
    assert sum(check(target, drafter, [[0, 1, 2, 0, 1]], set(), CopiesOrDrafts()) for drafter in drafters) > 3


def search(text: list[int], limit: int) -> list[int]:
    """The definition: the tokens after the first earlier occurrence of the longest n-gram that ends the text."""
    for n in range(LONGEST, LEAST - 1, -1):
        for end in range(n, len(text)):
            if text[end - n : end] == text[len(text) - n :]:
                return text[end : end + limit]
    return []


@settings(max_examples=100, deadline=None)
@given(
    chunks=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8),
    limit=st.integers(0, 6),
)
def test_drafter_and_policy_find_what_a_search_finds(chunks, limit):
    drafter, policy = PromptLookupDrafter(), TextLookup(LEAST, 6)
    drafter.prefill(chunks[0])
    policy.read(chunks[0])
    text = list(chunks[0])
    for chunk in chunks[1:]:
        assert drafter.propose(limit, None).tokens == policy.extend(limit) == search(text, limit)
        drafter.commit(0, chunk)
        policy.observe(SimpleNamespace(tokens=chunk))
        text += chunk
    assert drafter.propose(limit, None).tokens == search(text, limit)


def test_as_transformers_looks_up():
    import torch
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    text = torch.randint(0, 4, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    theirs = PromptLookupCandidateGenerator(num_output_tokens=5, max_matching_ngram_size=3, max_length=99, vocab_size=4)
    for length in range(2, len(text)):
        candidates, _ = theirs.get_candidates(torch.tensor([text[:length]]))
        drafter = PromptLookupDrafter(least=1, longest=3)
        drafter.prefill(text[:length])
        assert drafter.propose(5, None).tokens == candidates[0, length:].tolist()


def test_a_new_prompt_forgets_the_old_one_and_a_draft_ends_with_an_end_token():
    drafter = PromptLookupDrafter()
    drafter.prefill([1, 2, 3, 4, 1, 2])
    assert drafter.propose(2, None).tokens == [3, 4]
    drafter.prefill([1, 2])
    assert drafter.propose(2, None).tokens == []
    drafter = PromptLookupDrafter(end_tokens=frozenset({3}))
    drafter.prefill([1, 2, 3, 1])
    drafter.commit(0, [2])
    assert drafter.propose(5, None).tokens == [3]
