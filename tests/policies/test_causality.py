"""No decision knows what comes later: scrambling all that lies after a position changes none before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from asked import Asked
from draftgauge.judging.replay import replay, signal_arrays
from draftgauge.policies import POLICIES, Policy, make_policy
from draftgauge.policies.base import Extends, StatelessPolicy
from draftgauge.policies.stored_texts import AsksStored, StoredTexts, with_stored
from draftgauge.traces.trace import Trace
from linear_costs import LinearCosts
from synthetic import repeating_trace, synthetic_trace

GAMMA_MAX = 6
SHORT = {"fixed": "fixed:3", "ngram-mod": "ngram-mod:ngram=2,least=1,tokens=3"}  # as short as the texts here
SPECS = tuple(SHORT.get(name, name) for name in POLICIES)
SPECS += ("hf-confidence:adaptive=true", "sglang-adaptive:warm_up=1,every=1", "vllm:refit=60,warm_up=0")
POSITIONS = (7, 21, 38)
COLUMNS = ("token", "target_entropy", "draft_token", "confidence", "entropy", "margin", "drafted", "accepted")


def scrambled(trace: Trace, position: int, seed: int) -> Trace:
    """The one prompt with all rows from ``position`` on in another order, each column in its own.

    Tokens from there on are others, so drafts from before are accepted up to there at most.
    """
    rng = np.random.default_rng(seed)
    columns = {}
    for name in COLUMNS:
        column = getattr(trace, name).copy()
        column[position:] = rng.permutation(column[position:])
        columns[name] = column
    columns["accepted"][:position] = np.minimum(trace.accepted[:position], position - np.arange(position))
    return replace(trace, **columns)


def policy_of(spec: str, drafting: float = 0.02) -> Policy:
    return make_policy(spec, GAMMA_MAX, LinearCosts(drafting=drafting))


def at_once(policy: Policy, trace: Trace) -> np.ndarray | None:
    """The length wanted at every position by the form that decides them all at once."""
    return policy.lengths(signal_arrays(trace, policy.reads)) if isinstance(policy, StatelessPolicy) else None


def check(make: Callable[[], Policy], trace: Trace, position: int) -> None:
    """Raise AssertionError if a decision before a position depends on what lies after it."""
    lengths, steps = at_once(make(), trace), replay(trace, Asked(make())).record
    for seed in range(3):
        other = scrambled(trace, position, seed)
        if lengths is not None:
            changed = at_once(make(), other)
            assert changed is not None
            np.testing.assert_array_equal(changed[:position], lengths[:position])
        # Both walks are the same as long as no step has come to know a scrambled token.
        asked = replay(other, Asked(make())).record
        apart = int(np.argmax(steps.position + steps.committed > position))
        before = apart + int(steps.position[apart] < position)
        assert before > 0
        np.testing.assert_array_equal(asked.position[:before], steps.position[:before])
        np.testing.assert_array_equal(asked.drafted[:before], steps.drafted[:before])
        np.testing.assert_array_equal(asked.appended[:before], steps.appended[:before])


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_trace(seed=2, prompts=1, length=60, gamma_max=GAMMA_MAX)


@pytest.fixture(scope="module")
def repeating() -> Trace:
    return repeating_trace(seed=6, prompts=1, length=60, gamma_max=GAMMA_MAX)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("position", POSITIONS)
def test_what_comes_later_changes_no_decision_before_it(spec: str, position: int, trace: Trace) -> None:
    assert trace.positions > max(POSITIONS) + GAMMA_MAX
    check(lambda: policy_of(spec), trace, position)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if isinstance(policy_of(spec), Extends)])
@pytest.mark.parametrize("position", POSITIONS)
def test_so_it_is_where_the_text_repeats_itself(spec: str, position: int, repeating: Trace, stored: bool) -> None:
    """Also beside a datastore."""
    rng = np.random.default_rng(position)
    texts = StoredTexts([rng.integers(0, 6, rng.integers(0, 25)).tolist() for _ in range(6)])

    def make() -> Policy:
        policy = policy_of(spec, drafting=0.3)
        if stored and isinstance(policy, AsksStored):
            with_stored([policy], texts)
        return policy

    record = replay(repeating, make()).record
    assert record.appended.sum() >= 5, "the policy must append tokens for this to say something"
    check(make, repeating, position)
