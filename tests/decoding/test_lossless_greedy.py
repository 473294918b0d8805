"""In float32, greedy speculative output equals plain greedy output: every architecture, drafter and policy."""

from __future__ import annotations

import copy
import functools
import itertools
import random

import pytest

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
from linear_costs import LinearCosts
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
