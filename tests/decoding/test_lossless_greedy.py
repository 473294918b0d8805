"""Lossless: greedy output is plain greedy output, and over all random draws sampled output has the target's law."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import random
from collections import Counter

import pytest
import torch

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft
from draftgauge.models.base import CachedModel
from draftgauge.models.engines.static import StaticModel
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Extends, PolicyBase, Signal
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import POLICIES, make_policy
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from markov import Enumerator, MarkovModel, assert_same_law, law_of_model
from tiny import noisy, tiny_model, tokens

GAMMA_MAX = 8
ENGINES = [(engine, family) for engine in ("lean", "static") for family in ("qwen3", "llama", "mistral")]
ENGINES += [("lean", "mistral-sliding"), ("static", "qwen3-sliding"), ("static", "gemma2"), ("lean", "gemma3")]
ENGINES += [("modules", family) for family in ("qwen3", "llama", "mistral-sliding", "gemma", "gemma2", "gemma3")]
ARCHITECTURES = [(*pair, "gqa") for pair in ENGINES]
ARCHITECTURES += itertools.product(("lean", "static", "modules"), ["qwen3"], ("mha", "mqa"))
SETTINGS = DecodingSettings(16)
DRAFTERS = {  # and what they draft for
    "the target itself": ("lean", "qwen3", "gqa"),
    "a noised copy": ("modules", "mistral-sliding", "mqa"),
    "a noised copy, read once a step": ("static", "qwen3", "gqa"),
    "another model": ("lean", "qwen3", "gqa"),
    "prompt lookup": ("static", "llama", "mqa"),
}


class RandomPolicy(PolicyBase):
    """Any limit, and a coin after each drafted token."""

    reads = frozenset(SignalName)

    def reset(self) -> None:
        self._random = random.Random(0)

    def limit(self) -> int:
        return self._random.randint(0, GAMMA_MAX)

    def keep_drafting(self, signal) -> bool:
        return self._random.random() < 0.8


@functools.cache
def target_model(engine: str, family: str, attention: str) -> CachedModel:
    target = wrap(tiny_model(family, attention), engine)
    if isinstance(target, StaticModel):
        target.first_bucket = 8
    return target


@functools.cache
def plain_output(engine: str, family: str, attention: str) -> tuple[int, ...]:
    return tuple(plain_decode(target_model(engine, family, attention), prompt(), SETTINGS).tokens)


@functools.cache
def draft_model(engine: str, family: str, attention: str, kind: str) -> CachedModel:
    if kind == "another model":
        return wrap(tiny_model("llama", seed=7, num_hidden_layers=1), "lean")
    model = copy.deepcopy(target_model(engine, family, attention).module)
    return wrap(noisy(model, 0.05) if kind.startswith("a noised copy") else model, engine)


def make_drafter(kind: str, engine: str, family: str, attention: str):
    if kind == "prompt lookup":
        return PromptLookupDrafter()
    return LanguageModelDrafter(draft_model(engine, family, attention, kind))


def prompt() -> list[int]:
    return tokens(6, seed=3).tolist() * 3  # repeats itself, for prompt lookup, and is longer than the sliding windows


def policies():
    """One of every registered policy, and of several fixed lengths."""
    specs = [name for name in POLICIES if name != "fixed"]
    specs += [f"fixed:{gamma}" for gamma in (0, 1, 4, GAMMA_MAX)]
    return [
        pytest.param(functools.partial(make_policy, spec, GAMMA_MAX, LinearCosts(drafting=0.02)), id=spec)
        for spec in specs
    ] + [pytest.param(RandomPolicy, id="random")]


class UnreliableOracle:
    """Proposes the true output, but spoils each token with chance 0.2: drafts of any length are accepted in part."""

    def __init__(self, output: tuple[int, ...]) -> None:
        self._output = output

    def prefill(self, context: list[int]) -> None:
        self._position = 0
        self._random = random.Random(0)

    def propose(self, limit: int, keep_drafting, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        tokens: list[int] = []
        signals: list[Signal] = []
        for token in self._output[self._position : self._position + limit]:
            tokens.append(token if self._random.random() < 0.8 else token % 90 + 1)
            signals.append(Signal(len(tokens), 0.5, 1.0, 0.5))
            if keep_drafting is not None and len(tokens) < limit and not keep_drafting(signals[-1]):
                break
        return Draft(tokens, None, signals)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._position += len(tokens)


@pytest.mark.parametrize(("engine", "family", "attention"), ARCHITECTURES)
def test_every_architecture(engine, family, attention):
    model = (engine, family, attention)
    expected = plain_output(*model)
    partly_accepted = 0
    for policy in (FixedLength(3), FixedLength(GAMMA_MAX), RandomPolicy()):
        result = speculative_decode(target_model(*model), UnreliableOracle(expected), policy, prompt(), SETTINGS)
        assert tuple(result.tokens) == expected
        partly_accepted += sum(0 < step.accepted < step.drafted for step in result.steps)
    assert partly_accepted >= 3
    result = speculative_decode(
        target_model(*model), make_drafter("a noised copy", *model), FixedLength(4), prompt(), SETTINGS
    )
    assert tuple(result.tokens) == expected


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("make", policies())
def test_every_policy_and_drafter(make, kind):
    model = DRAFTERS[kind]
    policy = make()
    result = speculative_decode(target_model(*model), make_drafter(kind, *model), policy, prompt(), SETTINGS)
    assert tuple(result.tokens) == plain_output(*model)
    if kind == "the target itself" and not isinstance(policy, Extends):  # the text can be wrong, the target not
        assert "corrected" not in result.origins


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
