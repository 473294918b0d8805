"""What policies take to decide in the live loop, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import ClassVar

import pytest

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.decoding import decisions
from draftgauge.decoding.decisions import time_decisions
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models.loading import wrap
from draftgauge.policies.base import PolicyBase, Signal, Step, decision_of
from draftgauge.policies.registry import make_policy, timed_policies
from draftgauge.traces.costs import CostCurve, PolicySeconds
from tiny import tiny_model, tokens

LIMIT, TOKEN, EXTENDING, OBSERVING, READING = 1.0, 2.0, 8.0, 4.0, 0.25
PROMPT = tokens(20, seed=0).tolist()


class OnAClock(PolicyBase):
    """Takes a known time for everything, and counts its steps."""

    reads: ClassVar[Reads] = OF_DRAFTED_TOKENS

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.steps = clock, 0

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.clock[0] += READING * len(prompt_tokens)

    def limit(self) -> int:
        self.clock[0] += LIMIT
        return 3

    def keep_drafting(self, signal: Signal) -> bool:
        self.clock[0] += TOKEN
        return signal.depth < 2

    def observe(self, step: Step) -> None:
        self.clock[0] += OBSERVING
        self.steps += 1


class Extending(OnAClock):
    """Looks tokens up besides, and finds none."""

    def extend(self, room: int) -> Sequence[int]:
        self.clock[0] += EXTENDING
        return ()


class Trimming(OnAClock):
    """Leaves no token out, after some thought."""

    def trims(self) -> bool:
        self.clock[0] += EXTENDING
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def timed(policies: dict[str, OnAClock], seconds: float) -> tuple[PolicySeconds, ...]:
    target, draft = wrap(tiny_model(seed=1)), wrap(tiny_model(seed=2, num_hidden_layers=1))
    settings = DecodingSettings(max_new_tokens=12)
    return time_decisions(target, LanguageModelDrafter(draft), policies, repeat(PROMPT), settings, seconds)


def test_each_question_is_timed_by_what_it_is_asked_for(clock: list[float]) -> None:
    policies = {"reader": OnAClock(clock), "extending": Extending(clock), "trimming": Trimming(clock)}
    reader, extending, trimming = timed(policies, 0.0)
    assert reader == PolicySeconds("reader", TOKEN, LIMIT + OBSERVING, READING)
    assert (extending.token, extending.reading) == (TOKEN, READING)
    steps_with_room = (extending.step - LIMIT - OBSERVING) / EXTENDING  # the last step of an output may have none
    assert 0.5 < steps_with_room <= 1
    assert 0.5 < (trimming.step - LIMIT - OBSERVING) / EXTENDING <= 1


def test_it_ends_with_enough_steps_or_with_its_time(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "STEPS", 30)
    short, long = OnAClock(clock), OnAClock(clock)
    timed({"": short}, 0.0)
    timed({"": long}, 1e6)
    assert 0 < short.steps < 30 <= long.steps < 60


def test_policies_are_charged_what_was_timed_with_the_costs() -> None:
    row = ((1.0, 1.0, 1.0),)
    measured = tuple(PolicySeconds(name, 0.25, 0.5, 0.125) for name in timed_policies())
    curve = CostCurve((10,), *[row] * 6, 0.0, (1.0,), "none", "cpu", "float32", decisions=measured)
    assert {"stopping", "two-source"} <= set(timed_policies())
    for name in (*timed_policies(), "lookup-else-stopping"):
        assert decision_of(make_policy(name, 2, curve))[:3] == (0.25, 0.5, 0.125), name
    assert decision_of(make_policy("gated-lookup", 2, curve)).step != 0.5
