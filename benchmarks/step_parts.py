"""What the parts of the live loop take in every step, and what replay charges for the same step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import Policy, Signal, Step, decision_of, reads_of
from draftgauge.replay.backlog import backlogs
from draftgauge.replay.simulate import Charge, Replay
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
Parts = dict[str, Floats]

DRAFT, VERIFY, DECISION, OVERHEAD, READING = "draft", "verify", "decision", "overhead", "reading"
PARTS = (DRAFT, VERIFY, DECISION, OVERHEAD)
"""Of a step. Drafting is with its signals and without the decisions between its passes; the overhead is what is left.
"""


class PartClock:
    """Seconds of the parts of every step of one output."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._current: dict[str, float] = defaultdict(float)
        self._begun: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        """The first step begins."""
        self._last = time.perf_counter()

    def add(self, part: str, seconds: float) -> None:
        """A part took so long."""
        self._current[part] += seconds

    def begin(self, part: str) -> None:
        """A part begins that ends elsewhere."""
        self._begun[part] = time.perf_counter()

    def end(self, begun: str, part: str) -> None:
        """A part that has begun ends, or the first part of it."""
        self._current[part] += time.perf_counter() - self._begun[begun]

    def end_step(self) -> None:
        """The step ends."""
        now = time.perf_counter()
        self._current["step"] = now - self._last
        self.steps.append(dict(self._current))
        self._current.clear()
        self._last = now


class WatchedTarget(WrappedModel):
    """Its pass begins the verification, which the drafter's ``commit`` ends."""

    def __init__(self, model: CachedModel, clock: PartClock) -> None:
        super().__init__(model)
        self._clock = clock

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Timed."""
        self._clock.begin(VERIFY)
        logits = self.model.forward(tokens, last_only)
        self._clock.end(VERIFY, "target pass")
        return logits


class WatchedDraftModel(WrappedModel):
    """A draft model whose first pass in a step is told from the others."""

    def __init__(self, model: CachedModel, clock: PartClock) -> None:
        super().__init__(model)
        self._clock = clock
        self.first = True

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Timed."""
        begun = time.perf_counter()
        logits = self.model.forward(tokens, last_only)
        self._clock.add("first pass" if self.first else "later passes", time.perf_counter() - begun)
        self.first = False
        return logits


class WatchedDrafter:
    """A drafter whose proposals are timed."""

    def __init__(self, drafter: Drafter, clock: PartClock) -> None:
        self._drafter, self._clock = drafter, clock

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence."""
        self._drafter.prefill(context)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Timed, with the decisions in it."""
        model = getattr(self._drafter, "model", None)
        if isinstance(model, WatchedDraftModel):
            model.first = True
        begun = time.perf_counter()
        draft = self._drafter.propose(limit, keep_drafting, reads)
        self._clock.add("propose", time.perf_counter() - begun)
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """Ends the verification."""
        self._clock.end(VERIFY, VERIFY)
        self._drafter.commit(accepted, tokens)


class WatchedPolicy:
    """A policy whose decisions are timed; it begins the clock and ends the steps."""

    def __init__(self, policy: Policy, clock: PartClock) -> None:
        self._policy, self._clock = policy, clock
        self.reads = reads_of(policy)
        if hasattr(policy, "extend"):
            self.extend = self._extend
        if hasattr(policy, "read"):
            self.read = self._read

    def reset(self) -> None:
        """The first step begins."""
        self._clock.start()
        self._policy.reset()

    def _read(self, prompt_tokens: Sequence[int]) -> None:
        begun = time.perf_counter()
        self._policy.read(prompt_tokens)  # type: ignore[attr-defined]
        self._clock.add(READING, time.perf_counter() - begun)

    def limit(self) -> int:
        """Timed."""
        begun = time.perf_counter()
        limit = self._policy.limit()
        self._clock.add("limit", time.perf_counter() - begun)
        return limit

    def keep_drafting(self, signal: Signal) -> bool:
        """Timed."""
        begun = time.perf_counter()
        keeps = self._policy.keep_drafting(signal)
        self._clock.add("keep", time.perf_counter() - begun)
        return keeps

    def _extend(self, room: int) -> Sequence[int]:
        begun = time.perf_counter()
        tokens = self._policy.extend(room)  # type: ignore[attr-defined]
        self._clock.add("extend", time.perf_counter() - begun)
        return tokens

    def observe(self, step: Step) -> None:
        """Timed; the step ends."""
        begun = time.perf_counter()
        self._policy.observe(step)
        self._clock.add("observe", time.perf_counter() - begun)
        self._clock.end_step()


def live_parts(
    target: CachedModel, drafter: Drafter, policy: Policy, prompt: list[int], settings: DecodingSettings
) -> tuple[Any, list[dict[str, float]]]:
    """Decode under the clock: the output and the parts of each step."""
    clock = PartClock()
    model = drafter.model  # type: ignore[attr-defined]
    drafter.model = WatchedDraftModel(model, clock)  # type: ignore[attr-defined]
    try:
        result = speculative_decode(
            WatchedTarget(target, clock), WatchedDrafter(drafter, clock), WatchedPolicy(policy, clock), prompt, settings
        )
    finally:
        drafter.model = model  # type: ignore[attr-defined]
    return result, clock.steps


def charged_parts(trace: Trace, outcome: Replay, policy: Policy, costs: CostCurve) -> Parts:
    """What replay charges for every step, ``[S]`` by part."""
    record, charge = outcome.record, Charge(reads_of(policy), decision_of(policy))
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    contexts = prompt_tokens[record.prompt] + record.position
    verified = record.drafted + record.appended
    verify = costs.step_seconds(0, contexts, appended=verified) - costs.overhead
    together = costs.step_seconds(record.drafted, contexts, charge.reads, record.appended)
    catch_up = costs.catch_up_seconds(backlogs(record.prompt, record.drafted, record.accepted, costs), record.drafted)
    decision = charge.of_steps(record.drafted, record.committed)
    parts = {
        DRAFT: together - verify - costs.overhead + catch_up,
        VERIFY: verify,
        DECISION: decision,
        OVERHEAD: np.full(len(verify), costs.overhead),
        "catch_up": catch_up,
        "signals": costs.signals.of_token(charge.reads) * record.drafted,
    }
    assert np.allclose(sum(parts[name] for name in PARTS), record.seconds)
    return parts
