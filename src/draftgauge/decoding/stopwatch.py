"""A stopwatch inside the live loop: a drafter and a policy that time what the loop asks of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from draftgauge.core.signals import DISTRIBUTION, NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, Drafter, DraftsUnread, KeepDrafting, UnreadDraft, backlog_of
from draftgauge.policies.base import Signal, Step

Mark = float | torch.cuda.Event

IDLE_RUNS = (3, 1, 7, 1)
"""Steps in a row that draft nothing; the rounds take turns with these runs. A draft of one token follows each, so that
the drafter is timed with several committed tokens to take in.
"""
SHORT_IDLE_RUN = 3
"""Steps of one more such run in every round, followed by a draft of two tokens."""
SHORT, MORE_OF_SHORT, RUN = 6, 2, 3
"""Lengths up to the first are drafted that many times more in every round, once more with signals, and once in a run of
that many steps.
"""
PRICED: tuple[Reads, ...] = (
    frozenset({SignalName.TEXT}),
    *(frozenset({name}) for name in sorted(DISTRIBUTION)),
    DISTRIBUTION,
)
"""The sets of signals that are timed, to find what each signal adds."""


class Stopwatch:
    """Marks moments: on a GPU by events in its stream, which wait for nothing; elsewhere by the clock.

    Work that is spread over several devices has no stream of its own: each mark then waits for all of them.
    """

    def __init__(self, *devices: torch.device) -> None:
        """For work on those devices."""
        self._gpus = sorted({device for device in devices if device.type == "cuda"}, key=str)
        self._one_stream = len({*devices}) == len(self._gpus) == 1

    def mark(self) -> Mark:
        """This moment, to be compared later."""
        if self._one_stream:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._gpus[0]))
            return event
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)
        return time.perf_counter()


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
        reads: the signals that were computed.
        backlog: committed tokens that the drafter had to take in; 1 where nothing was drafted.
        draft: proposing them.
        verify: all from the draft's end to the commit: handing ``gamma + 1`` tokens to the target, its pass over them,
            reading its choices off the logits, rolling back.
        step: all of it, the loop included.
        repeats: whether the step before drafted as many tokens.
    """

    gamma: int
    reads: Reads
    backlog: int
    draft: float
    verify: float
    step: float
    repeats: bool = False


class StepTimer:
    """Collects the marks of every step while the loop runs, and makes samples of them afterwards.

    It is the loop's policy: it asks for the draft lengths in random order, over and over, so that whatever disturbs the
    machine falls on all of them alike, and every length meets the states that the others leave behind. In every round
    each length comes once without signals and once with one of the sets in :data:`PRICED`, by turns; short ones, which
    take the least time and are what policies mostly draft, come more often, and in runs as well: steps that propose as
    much as the one before take less (:class:`~draftgauge.traces.costs.RepeatSeconds`). So do steps that draft nothing
    (:data:`IDLE_RUNS`), as where one does not speculate.

    Attributes:
        reads: the signals of the running step; unlike other policies it declares them anew for every step.
        samples: the steps timed so far.
        backlog: of the running step; the drafter tells.
    """

    def __init__(self, stopwatch: Stopwatch, gamma_max: int, rng: np.random.Generator) -> None:
        """Time steps on a stopwatch.

        Args:
            stopwatch: of the target's device.
            gamma_max: longest draft.
            rng: for the order of the lengths.
        """
        self.reads = NO_SIGNALS
        self.samples: list[Sample] = []
        self.backlog = 1
        self._stopwatch = stopwatch
        self._gamma_max = gamma_max
        self._rng = rng
        self._planned: list[tuple[int, Reads]] = []
        self._sets: list[Reads] = []
        self._rounds = 0
        self._asked = 0
        self._begun: dict[str, Mark] = {}  # of the running step, by part
        self._ended: dict[str, Mark] = {}
        self._steps: list[_Marks] = []
        self._last: Mark | None = None
        self._before = -1  # tokens that the last step drafted

    def reset(self) -> None:
        """A new output begins; its first step, just after the prefill, is not counted."""
        self._begun, self._ended, self._last = {}, {}, None

    def limit(self) -> int:
        """The next length; ``reads`` becomes the set that goes with it."""
        if not self._planned:
            self._planned = self._round()
        self._asked, self.reads = self._planned.pop()
        self.begin("verify")  # unless something is drafted first
        return self._asked

    def _round(self) -> list[tuple[int, Reads]]:
        """Lengths above 0 with and without signals, short ones more often and in runs, and idle runs, shuffled."""
        lengths = range(1, self._gamma_max + 1)
        drafts = [[(length, reads)] for length in lengths for reads in (NO_SIGNALS, self._next_set())]
        drafts += [[(length, NO_SIGNALS)] for length in lengths[:SHORT]] * MORE_OF_SHORT
        drafts += [[(length, NO_SIGNALS)] * RUN for length in lengths[:SHORT]]
        drafts += [[(length, self._next_set())] for length in lengths[:SHORT]]
        idle = [(0, NO_SIGNALS)] * IDLE_RUNS[self._rounds % len(IDLE_RUNS)]
        self._rounds += 1
        short = [(0, NO_SIGNALS)] * SHORT_IDLE_RUN
        # Steps are taken from the end, so the draft of each run comes last.
        pieces = [*drafts, [(1, NO_SIGNALS), *idle], [(min(2, self._gamma_max), NO_SIGNALS), *short]]
        return [step for index in self._rng.permutation(len(pieces)) for step in pieces[index]]

    def _next_set(self) -> Reads:
        """Every set as often as the others, with the target's entropy every other time."""
        if not self._sets:
            every = [*PRICED, *(reads | {SignalName.TARGET_ENTROPY} for reads in PRICED)]
            self._sets = [every[index] for index in self._rng.permutation(len(every))]
        return self._sets.pop()

    def keep_drafting(self, signal: Signal) -> bool:
        return True

    def begin(self, part: str) -> None:
        """A part of the running step begins: "draft" or "verify"."""
        self._begun[part] = self._stopwatch.mark()

    def drafted(self) -> None:
        """The running step's draft ends, and its verification begins."""
        self._ended["draft"] = self._begun["verify"] = self._stopwatch.mark()

    def verified(self) -> None:
        """The running step's verification ends."""
        self._ended["verify"] = self._stopwatch.mark()

    def observe(self, step: Step) -> None:
        """The step ends."""
        now = self._stopwatch.mark()
        # Near the end of the output the loop drafts fewer tokens than asked for; so it does where a draft ends early.
        if self._last is not None and step.drafted == self._asked:
            repeats = step.drafted == self._before
            self._steps.append(
                _Marks(step.drafted, self.reads, self.backlog, repeats, self._begun, self._ended, self._last, now)
            )
        self._begun, self._ended, self._last = {}, {}, now
        self.backlog = 1
        self._before = step.drafted

    def settle(self) -> None:
        """Make samples of the steps so far, once the device has done its work."""
        self.samples += [marks.sample() for marks in self._steps]
        self._steps = []

    def fewest(self) -> int:
        """The fewest samples of any length (without signals, repeats left out) or of any set of signals."""
        plain = [sample.gamma for sample in self.samples if sample.reads == NO_SIGNALS and not sample.repeats]
        lengths = np.bincount(plain, minlength=self._gamma_max + 1)
        sets = Counter(sample.reads & OF_DRAFTED_TOKENS for sample in self.samples)
        return min(int(lengths.min()), *(sets[reads] for reads in PRICED))


@dataclass(frozen=True)
class _Marks:
    """The moments of one step."""

    gamma: int
    reads: Reads
    backlog: int
    repeats: bool
    begun: Mapping[str, Mark]
    ended: Mapping[str, Mark]
    start: Mark
    end: Mark

    def sample(self) -> Sample:
        parts = {part: seconds_between(self.begun[part], self.ended[part]) for part in self.ended}
        seconds = seconds_between(self.start, self.end)
        draft, verify = parts.get("draft", 0.0), parts["verify"]
        return Sample(self.gamma, self.reads, self.backlog, draft, verify, seconds, self.repeats)


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
        self._drafter.prefill(context)

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        """Draft exactly ``limit`` tokens, unread, if the drafter can."""
        if not isinstance(self._drafter, DraftsUnread):
            return None
        self._timer.backlog = max(1, backlog_of(self._drafter))
        self._timer.begin("draft")
        draft = self._drafter.propose_unread(limit)
        if draft is None:
            return None
        self._timer.drafted()
        self._proposed = len(draft.tokens)
        if self._proposed == limit:
            return draft
        return UnreadDraft(functional.pad(draft.tokens, (0, limit - self._proposed), value=self._filler))

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Draft exactly ``limit`` tokens."""
        self._timer.backlog = max(1, backlog_of(self._drafter))
        self._timer.begin("draft")
        draft = self._drafter.propose(limit, keep_drafting, reads)
        self._timer.drafted()
        self._proposed = len(draft.tokens)
        if self._proposed == limit:
            return draft
        return Draft(draft.tokens + [self._filler] * (limit - self._proposed), None, draft.signals)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """Pass on how much of the drafter's own proposal was accepted; the target's cache is rolled back by now."""
        self._timer.verified()
        self._drafter.commit(min(accepted, self._proposed), tokens)
