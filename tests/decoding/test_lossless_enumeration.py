"""The whole speculative loop, every way its random draws can fall: its output has exactly the target's distribution."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from draftgauge.verification import Sampling
from markov import Enumerator, MarkovModel, assert_same_law, law_of_model
from tiny import tiny_model

UNUSED = torch.Generator()  # the enumerator draws instead


def check_law(monkeypatch, target, drafter, gamma, prompt, settings):
    """Speculation has the law of the target alone."""

    def program():
        return tuple(speculative_decode(target, drafter, FixedLength(gamma), prompt, settings, UNUSED).tokens)

    expected = law_of_model(target, prompt, settings.max_new_tokens, settings.sampling, settings.end_tokens)
    assert_same_law(Enumerator(monkeypatch).law(program), expected)


@pytest.mark.parametrize(
    ("vocabulary", "count", "gamma", "sampling"),
    [
        (2, 3, 1, Sampling(1.0)),
        (2, 4, 2, Sampling(0.7)),
        (2, 4, 3, Sampling(1.0)),
        (3, 3, 1, Sampling(1.5, top_p=0.8)),
        (3, 3, 2, Sampling(1.0, top_k=2)),
        (4, 2, 1, Sampling(0.5)),
        (4, 3, 2, Sampling(1.0, top_k=3, top_p=0.6)),
    ],
)
def test_sampled_drafts(monkeypatch, vocabulary, count, gamma, sampling):
    target = MarkovModel.random(vocabulary, seed=vocabulary)
    drafter = LanguageModelDrafter(MarkovModel.random(vocabulary, seed=50 + gamma), sampling=sampling, generator=UNUSED)
    check_law(monkeypatch, target, drafter, gamma, [1, 0], DecodingSettings(count, sampling))


def test_sampled_drafts_that_can_hold_an_end_token(monkeypatch):
    sampling, end = Sampling(1.2), frozenset({1})
    target = MarkovModel.random(3, seed=8)
    drafter = LanguageModelDrafter(target.noised(1.0, seed=9), end, sampling, UNUSED)
    check_law(monkeypatch, target, drafter, 2, [0], DecodingSettings(3, sampling, end))


@pytest.mark.parametrize("width", [2, 4])
def test_a_draft_of_fewer_or_more_tokens_than_the_targets(monkeypatch, width):
    sampling, target = Sampling(1.0), MarkovModel.random(3, seed=8)
    drafter = LanguageModelDrafter(MarkovModel.random(width, seed=9), frozenset(), sampling, UNUSED, 3)
    check_law(monkeypatch, target, drafter, 2, [2, 1], DecodingSettings(3, sampling))


@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_drafters_without_a_distribution(monkeypatch, gamma):
    target = MarkovModel.random(2, seed=3)
    for drafter in (PromptLookupDrafter(), LanguageModelDrafter(target.noised(1.0, seed=4))):
        check_law(monkeypatch, target, drafter, gamma, [0, 1, 0, 1], DecodingSettings(4, Sampling(0.9)))


def test_a_draft_drawn_at_another_temperature(monkeypatch):
    target = MarkovModel.random(3, seed=5)
    drafter = LanguageModelDrafter(target.noised(0.5, seed=6), sampling=Sampling(2.0), generator=UNUSED)
    check_law(monkeypatch, target, drafter, 2, [2], DecodingSettings(3, Sampling(0.8, top_k=2)))


def test_a_hybrid_target_and_a_hybrid_draft_model(monkeypatch):
    kinds = {"layer_types": ["linear_attention", "full_attention"], "vocab_size": 2, "linear_num_value_heads": 2}
    kinds |= {"linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    target, draft = (wrap(tiny_model("qwen3_5_text", seed=seed, **kinds)) for seed in (1, 2))
    drafter = LanguageModelDrafter(draft, sampling=Sampling(1.0), generator=UNUSED)
    settings = DecodingSettings(3, Sampling(1.0))

    def speculation():
        return tuple(speculative_decode(target, drafter, FixedLength(2), [1, 0], settings, UNUSED).tokens)

    expected = Enumerator(monkeypatch).law(lambda: tuple(plain_decode(target, [1, 0], settings, UNUSED).tokens))
    assert_same_law(Enumerator(monkeypatch).law(speculation), expected)


def test_the_plain_loop(monkeypatch):
    target, settings = MarkovModel.random(3, seed=5), DecodingSettings(3, Sampling(1.0, top_p=0.9), frozenset({2}))
    law = Enumerator(monkeypatch).law(lambda: tuple(plain_decode(target, [1], settings, UNUSED).tokens))
    assert_same_law(law, law_of_model(target, [1], 3, settings.sampling, settings.end_tokens))


def test_seeded_outputs_follow_the_law():
    """The same through the real random draws, which the enumeration replaces."""
    sampling, runs = Sampling(1.0), 1000
    generator = torch.Generator().manual_seed(1)
    target = MarkovModel.random(2, seed=2)
    drafter = LanguageModelDrafter(target.noised(1.5, seed=3), sampling=sampling, generator=generator)
    settings = DecodingSettings(3, sampling)
    counts = Counter(
        tuple(speculative_decode(target, drafter, FixedLength(2), [0], settings, generator).tokens) for _ in range(runs)
    )
    law = law_of_model(target, [0], 3, sampling)
    assert counts.keys() <= law.keys()
    for output, chance in law.items():
        assert abs(counts[output] / runs - chance) < 4 * math.sqrt(chance * (1 - chance) / runs), output
