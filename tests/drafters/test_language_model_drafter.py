"""The drafter's cache stays in step with the committed text, whatever is accepted, and no pass is wasted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.drafters import LanguageModelDrafter
from draftgauge.drafters.base import LoadOptions
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.verification import Sampling, probabilities, signals
from markov import MarkovModel

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
