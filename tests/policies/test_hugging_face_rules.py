"""The policies named after transformers follow the code of the installed transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from draftgauge.policies import Policy, Signal, Step, make_policy

GAMMA_MAX = 64  # longer than any length reached here, as transformers has no longest draft


def transformers_generator(schedule: str, threshold: float = 0.4, tokens: int = 20) -> Any:
    """The part of transformers that adapts the draft length, without its models."""
    generator = AssistedCandidateGenerator.__new__(AssistedCandidateGenerator)
    generator.assistant_generation_config = SimpleNamespace(
        num_assistant_tokens_schedule=schedule, assistant_confidence_threshold=threshold
    )
    generator.generation_config = SimpleNamespace(assistant_confidence_threshold=threshold)
    generator.num_assistant_tokens = tokens
    generator.probs = []
    generator.matches = []
    return generator


def take_step(policy: Policy, generator: Any, confidences: list[float], matches: int) -> None:
    """The same outcome of one step, told to both."""
    drafted = len(confidences)
    generator.probs.extend(confidences)
    generator.update_candidate_strategy(None, [range(drafted + 1)], matches)
    signals = [Signal(depth, confidence, 0.0, 0.0) for depth, confidence in enumerate(confidences, start=1)]
    policy.observe(Step(drafted, matches, matches + 1, signals))


def random_steps(seed: int, count: int) -> list[tuple[list[float], int]]:
    """Confidences of the drafted tokens of each step, with many ties, and how many matched."""
    rng = np.random.default_rng(seed)
    steps = []
    for drafted in rng.integers(0, 6, count).tolist():
        confidences = rng.integers(1, 21, drafted) / 20
        wrong = np.flatnonzero(rng.random(drafted) > confidences)
        steps.append((confidences.tolist(), int(wrong[0]) if len(wrong) else drafted))
    return steps


def test_defaults_are_those_of_transformers() -> None:
    defaults = GenerationConfig()._get_default_generation_params()
    assert make_policy("hf-heuristic", GAMMA_MAX).limit() == defaults["num_assistant_tokens"]
    assert make_policy("hf-confidence", GAMMA_MAX).limit() == defaults["num_assistant_tokens"]
    for adaptive in ("true", "false"):
        policy = make_policy(f"hf-confidence:adaptive={adaptive}", GAMMA_MAX)
        assert policy.keep_drafting(Signal(1, defaults["assistant_confidence_threshold"], 0.0, 0.0))
        assert not policy.keep_drafting(Signal(1, defaults["assistant_confidence_threshold"] - 1e-6, 0.0, 0.0))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_heuristic_follows_transformers(seed: int) -> None:
    policy, generator = (
        make_policy("hf-heuristic:start=4", GAMMA_MAX),
        transformers_generator("heuristic", threshold=0.0, tokens=4),
    )
    for confidences, matches in random_steps(seed, 20):
        take_step(policy, generator, confidences, matches)
        assert policy.limit() == generator.num_assistant_tokens


@pytest.mark.parametrize(("seed", "steps"), [*((seed, 12) for seed in range(12)), *((seed, 60) for seed in range(8))])
def test_adaptive_threshold_follows_transformers_exactly(seed: int, steps: int) -> None:
    policy, generator = make_policy("hf-confidence:adaptive=true", GAMMA_MAX), transformers_generator("constant")
    for confidences, matches in random_steps(seed, steps):
        take_step(policy, generator, confidences, matches)
        threshold = generator.assistant_generation_config.assistant_confidence_threshold
        assert policy.keep_drafting(Signal(1, threshold, 0.0, 0.0))
        assert not policy.keep_drafting(Signal(1, np.nextafter(threshold, 0.0), 0.0, 0.0))


@pytest.mark.parametrize(("persistent", "after_reset"), [("true", 5), ("false", 3)])
def test_heuristic_length_carries_over_to_the_next_prompt_unless_transient(persistent: str, after_reset: int) -> None:
    policy = make_policy(f"hf-heuristic:start=3,persistent={persistent}", GAMMA_MAX)
    policy.observe(Step(drafted=3, accepted=3, committed=4))
    policy.reset()
    assert policy.limit() == after_reset


def test_adaptive_threshold_begins_anew_with_every_prompt() -> None:
    policy = make_policy("hf-confidence:adaptive=true", GAMMA_MAX)
    for _ in range(4):  # confident and wrong after confident and right
        policy.observe(Step(2, 1, 2, [Signal(1, 0.95, 0.0, 0.0), Signal(2, 0.9, 0.0, 0.0)]))
    assert not policy.keep_drafting(Signal(1, 0.9, 0.0, 0.0))
    policy.reset()
    assert policy.keep_drafting(Signal(1, 0.4, 0.0, 0.0))
    assert not policy.keep_drafting(Signal(1, 0.39, 0.0, 0.0))
