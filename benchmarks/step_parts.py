"""What the parts of the live loop take in every step, and what replay charges for the same step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import Policy, Signal, Step, decision_of, reads_of
from draftgauge.replaying.backlog import backlogs
from draftgauge.replaying.simulate import Charge, Replay
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
Parts = dict[str, Floats]

DRAFT, VERIFY, DECISION, OVERHEAD = "draft", "verify", "decision", "overhead"
PARTS = (DRAFT, VERIFY, DECISION, OVERHEAD)
"""Of a step, as the cost meter cuts it: drafting with its signals, without the decisions between its passes; from there
to the commit; the policy's decisions; and what is left.
"""
STEP, KEEP = "step", "keep_drafting"
DECISIONS = (KEEP, "limit", "extend", "observe")


class PartClock:
    """Seconds of the parts of every step of one output."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._current: dict[str, float] = defaultdict(float)
        self._last = self._verifying = 0.0

    def start(self) -> None:
        """The first step begins."""
        self._current.clear()
        self._last = time.perf_counter()

    def of(self, part: str) -> float:
        """What a part of the running step took so far."""
        return self._current[part]

    def add(self, part: str, begun: float) -> None:
        """A part that began then ends now; the verification begins here unless something else comes first."""
        self._verifying = time.perf_counter()
        self._current[part] += self._verifying - begun

    def verified(self) -> None:
        """The verification ends."""
        self._current[VERIFY] = time.perf_counter() - self._verifying

    def end_step(self) -> None:
        """The step ends."""
        now = time.perf_counter()
        parts = dict(self._current)
        parts[STEP] = now - self._last
        parts[DECISION] = sum(parts.get(name, 0.0) for name in DECISIONS)
        parts.setdefault(DRAFT, 0.0)
        parts[OVERHEAD] = parts[STEP] - parts[DRAFT] - parts[VERIFY] - parts[DECISION]
        self.steps.append(parts)
        self._current.clear()
        self._last = time.perf_counter()


class WatchedDrafter:
    """A drafter whose proposals are timed, without the decisions in them; its ``commit`` ends the verification."""

    def __init__(self, drafter: Drafter, clock: PartClock) -> None:
        self._drafter, self._clock = drafter, clock

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence."""
        self._drafter.prefill(context)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft up to ``limit`` tokens."""
        decided, begun = self._clock.of(KEEP), time.perf_counter()
        draft = self._drafter.propose(limit, keep_drafting, reads)
        self._clock.add(DRAFT, begun + self._clock.of(KEEP) - decided)
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """Pass on."""
        self._clock.verified()
        self._drafter.commit(accepted, tokens)


class WatchedPolicy:
    """A policy whose decisions are timed; it starts the clock and ends the steps."""

    def __init__(self, policy: Any, clock: PartClock) -> None:
        self._policy, self._clock = policy, clock
        self.reads = reads_of(policy)
        if hasattr(policy, "extend"):
            self.extend = self._extend
        if hasattr(policy, "read"):
            self.read = self._read

    def reset(self) -> None:
        """A new output."""
        self._policy.reset()
        self._clock.start()

    def limit(self) -> int:
        """The policy's."""
        begun = time.perf_counter()
        limit: int = self._policy.limit()
        self._clock.add("limit", begun)
        return limit

    def keep_drafting(self, signal: Signal) -> bool:
        """The policy's."""
        begun = time.perf_counter()
        keeps: bool = self._policy.keep_drafting(signal)
        self._clock.add(KEEP, begun)
        return keeps

    def observe(self, step: Step) -> None:
        """The policy's; the step ends."""
        begun = time.perf_counter()
        self._policy.observe(step)
        self._clock.add("observe", begun)
        self._clock.end_step()

    def _read(self, prompt_tokens: Sequence[int]) -> None:
        """The policy's, which replay charges by prompt and not by step."""
        self._policy.read(prompt_tokens)
        self._clock.start()

    def _extend(self, room: int) -> Sequence[int]:
        begun = time.perf_counter()
        tokens: Sequence[int] = self._policy.extend(room)
        self._clock.add("extend", begun)
        return tokens


def live_parts(
    target: CachedModel, drafter: Drafter, policy: Policy, prompt: list[int], settings: DecodingSettings
) -> list[dict[str, float]]:
    """Decode under the clock: seconds of each step by part, and of the single decisions."""
    clock = PartClock()
    speculative_decode(target, WatchedDrafter(drafter, clock), WatchedPolicy(policy, clock), prompt, settings)
    return clock.steps


def charged_parts(trace: Trace, outcome: Replay, policy: Policy, costs: CostCurve) -> Parts:
    """What replay charges for every step, ``[S]`` by part."""
    record, charge = outcome.record, Charge(reads_of(policy), decision_of(policy))
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    contexts = prompt_tokens[record.prompt] + record.position
    beyond = record.appended - record.trimmed
    verify = costs.step_seconds(0, contexts, appended=record.drafted + beyond) - costs.overhead
    drafted = costs.step_seconds(record.drafted, contexts, charge.reads, beyond) - verify - costs.overhead
    backlog = backlogs(record.prompt, record.drafted, record.accepted, costs)
    parts = {
        DRAFT: drafted + costs.catch_up_seconds(backlog, record.drafted),
        VERIFY: verify,
        DECISION: charge.of_steps(record.drafted, record.committed, record.appended),
        OVERHEAD: np.full(len(verify), costs.overhead),
    }
    assert np.allclose(sum(parts.values()), record.seconds)
    return parts
