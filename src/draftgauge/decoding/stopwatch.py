"""A stopwatch inside the live loop: a model, a drafter and a policy that time what the loop asks of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import Signal, SignalKind, Step

Mark = float | torch.cuda.Event

IDLE_STEPS = 2  # that draft nothing, counted in every round of lengths


class Stopwatch:
    """Marks moments: on a GPU by events in its stream, which wait for nothing; elsewhere by the clock."""

    def __init__(self, device: torch.device) -> None:
        """For work on that device."""
        self._cuda = device.type == "cuda"

    def mark(self) -> Mark:
        """This moment, to be compared later."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds_between(start: Mark, end: Mark) -> float:
    """Seconds from one mark to the other; on a GPU the later one must have passed."""
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start
    return start.elapsed_time(end) / 1000


class Sample(NamedTuple):
    """Seconds of one step.

    Attributes:
        gamma: tokens drafted.
        draft: proposing them.
        verify: the target's pass over ``gamma + 1`` tokens, reading its choices off the logits, rolling back.
        step: all of it, the loop included.
    """

    gamma: int
    draft: float
    verify: float
    step: float


class StepTimer:
    """Collects the marks of every step while the loop runs, and makes samples of them afterwards.

    It is the loop's policy: it asks for the draft lengths in random order, over and over, so that whatever disturbs the machine
    falls on all of them alike, and every length meets the states that the others leave behind. Only steps that draft nothing come
    in runs, as where one does not speculate, and the first of a run is not counted: it would find the draft in the caches.
    """

    def __init__(
        self, stopwatch: Stopwatch, gamma_max: int, rng: np.random.Generator, needs_signals: SignalKind
    ) -> None:
        """Time steps on a stopwatch.

        Args:
            stopwatch: of the target's device.
            gamma_max: longest draft.
            rng: for the order of the lengths.
            needs_signals: time steps as they are for a policy that looks at so much.
        """
        self.needs_signals = needs_signals
        self.samples: list[Sample] = []
        self._stopwatch = stopwatch
        self._gamma_max = gamma_max
        self._rng = rng
        self._lengths: list[int] = []
        self._asked = 0
        self._begun: dict[str, Mark] = {}  # of the running step, by part
        self._ended: dict[str, Mark] = {}
        self._steps: list[_Marks] = []
        self._last: Mark | None = None
        self._drafted_before = True

    def reset(self) -> None:
        """A new output begins; its first step, just after the prefill, is not counted."""
        self._begun, self._ended, self._last = {}, {}, None

    def limit(self) -> int:
        """The next length."""
        if not self._lengths:
            shuffled = self._rng.permutation(self._gamma_max + 1).tolist()
            self._lengths = [length for length in shuffled for _ in range(1 if length else 1 + IDLE_STEPS)]
        self._asked = self._lengths.pop()
        return self._asked

    def keep_drafting(self, signal: Signal) -> bool:
        """Always."""
        return True

    def begin(self, part: str) -> None:
        """A part of the running step begins: "draft" or "verify"."""
        self._begun[part] = self._stopwatch.mark()

    def end(self, part: str) -> None:
        """A part of the running step ends."""
        self._ended[part] = self._stopwatch.mark()

    def observe(self, step: Step) -> None:
        """The step ends."""
        now = self._stopwatch.mark()
        # Near the end of the output the loop drafts fewer tokens than asked for; so it does where a draft ends early.
        counts = step.drafted == self._asked and (step.drafted > 0 or not self._drafted_before)
        if self._last is not None and counts:
            self._steps.append(_Marks(step.drafted, self._begun, self._ended, self._last, now))
        self._begun, self._ended, self._last = {}, {}, now
        self._drafted_before = step.drafted > 0

    def settle(self) -> None:
        """Make samples of the steps so far, once the device has done its work."""
        self.samples += [marks.sample() for marks in self._steps]
        self._steps = []

    def fewest(self) -> int:
        """Samples of the length that has the fewest."""
        counts = np.bincount([sample.gamma for sample in self.samples], minlength=self._gamma_max + 1)
        return int(counts.min())


@dataclass(frozen=True)
class _Marks:
    """The moments of one step."""

    gamma: int
    begun: Mapping[str, Mark]
    ended: Mapping[str, Mark]
    start: Mark
    end: Mark

    def sample(self) -> Sample:
        parts = {part: seconds_between(self.begun[part], self.ended[part]) for part in self.ended}
        return Sample(self.gamma, parts.get("draft", 0.0), parts["verify"], seconds_between(self.start, self.end))


class TimedModel(WrappedModel):
    """A target whose passes begin the verification."""

    def __init__(self, model: CachedModel, timer: StepTimer) -> None:
        """Watch a model."""
        super().__init__(model)
        self._timer = timer

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and return logits."""
        self._timer.begin("verify")
        return self.model.forward(tokens, last_only)


class TimedDrafter:
    """A drafter whose proposals are timed, and filled up to the length asked for; its ``commit`` ends the verification.

    A drafter that has less to propose (prompt lookup without a match) would leave long verifications unmeasured.
    """

    def __init__(self, drafter: Drafter, timer: StepTimer, filler: int) -> None:
        """Watch a drafter; missing tokens are replaced by the token ``filler``."""
        self._drafter = drafter
        self._timer = timer
        self._filler = filler
        self._proposed = 0

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence."""
        self._drafter.prefill(context)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, confidence_only: bool = False) -> Draft:
        """Draft exactly ``limit`` tokens."""
        self._timer.begin("draft")
        draft = self._drafter.propose(limit, keep_drafting, confidence_only)
        self._timer.end("draft")
        self._proposed = len(draft.tokens)
        if self._proposed == limit:
            return draft
        return Draft(draft.tokens + [self._filler] * (limit - self._proposed), None, draft.signals)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """Pass on how much of the drafter's own proposal was accepted; the target's cache has been rolled back by now."""
        self._timer.end("verify")
        self._drafter.commit(min(accepted, self._proposed), tokens)
