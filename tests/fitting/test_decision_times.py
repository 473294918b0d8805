"""What deciding takes, as fitting measures it: on a clock that only the policy moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pytest

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.fitting import decision_times as timing
from draftgauge.fitting.decision_times import TIMED_LENGTH, decision_times, draft_and_target
from draftgauge.policies.base import DecisionSeconds, PolicyBase, Signal, Step

LIMIT, TOKEN, OBSERVING, COMMITTED, READING = 1.0, 2.0, 4.0, 0.5, 0.25


class OnAClock(PolicyBase):
    """Takes a known time for everything, and notes what it is asked."""

    reads: ClassVar[Reads] = OF_DRAFTED_TOKENS

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []

    def takes(self, name: str, seconds: float) -> None:
        self.asked.append(name)
        self.now += seconds

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.takes("read", READING * len(prompt_tokens))

    def limit(self) -> int:
        self.takes("limit", LIMIT)
        return TIMED_LENGTH

    def keep_drafting(self, signal: Signal) -> bool:
        self.takes("token", TOKEN)
        return True

    def observe(self, step: Step) -> None:
        self.takes("observe", OBSERVING * (step.drafted > 0) + COMMITTED * step.committed)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> OnAClock:
    policy = OnAClock()
    monkeypatch.setattr("time.perf_counter", lambda: policy.now)
    return policy


def test_each_decision_is_timed_for_itself(policy: OnAClock):
    expected = DecisionSeconds(TOKEN, LIMIT + OBSERVING, READING, COMMITTED)
    assert decision_times(policy) == pytest.approx(expected)
    assert policy.asked[: TIMED_LENGTH + 3] == ["limit", *["token"] * TIMED_LENGTH, "observe", "limit"]


@pytest.mark.parametrize("longest", [1, 2, 9])
def test_no_longer_draft_is_timed_than_the_policy_takes(policy: OnAClock, longest: int):
    expected = DecisionSeconds(TOKEN, LIMIT + OBSERVING, READING, COMMITTED)
    assert decision_times(policy, longest) == pytest.approx(expected)
    assert policy.asked[: policy.asked.index("observe")].count("token") == min(longest, TIMED_LENGTH)


def test_a_pass_comes_before_each_token_and_before_what_follows_verification(
    policy: OnAClock, monkeypatch: pytest.MonkeyPatch
):
    passes = [lambda name=name: policy.asked.append(name) for name in ("draft pass", "target pass")]
    monkeypatch.setattr(timing, "draft_and_target", lambda: passes)
    decision_times(policy)
    step = ["limit", *["draft pass", "token"] * TIMED_LENGTH, "target pass", "observe"]
    assert policy.asked[: 2 * len(step)] == 2 * step


def test_made_up_passes_give_a_token_and_its_confidence():
    for each in draft_and_target():
        token, confidence = each()
        assert 0 <= token < 4096
        assert 1 / 4096 <= confidence <= 1
