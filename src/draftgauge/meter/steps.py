"""Timing the steps of the live loop: a policy that asks for given draft lengths, and a drafter that is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, Drafter, DraftsUnread, KeepDrafting, UnreadDraft, backlog_of
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import PolicyBase, Step

Mark = float | torch.cuda.Event

BACKLOGS = 8  # numbers of tokens to take in that are told apart
LOOKS: Reads = frozenset({SignalName.CONFIDENCE, SignalName.TEXT})  # what a policy that looks at each token reads


class Stopwatch:
    """Marks moments: on a GPU by events in its stream, which wait for nothing; elsewhere by the clock.

    Work that is spread over several devices has no stream of its own: each mark then waits for all of them.
    """

    def __init__(self, *devices: torch.device) -> None:
        self._gpus = sorted({device for device in devices if device.type == "cuda"}, key=str)
        self._one_stream = len({*devices}) == len(self._gpus) == 1

    def mark(self) -> Mark:
        if self._one_stream:
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self._gpus[0]))
            return event
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)
        return time.perf_counter()


def seconds_between(start: Any, end: Any) -> float:
    """From one mark of a stopwatch to another."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1000


class Asked(NamedTuple):
    """A step to time.

    Attributes:
        gamma: tokens that are verified as a draft.
        drafted: how many of them the drafter proposes; the others are filled in.
        looks: whether the policy looks at each of them.
    """

    gamma: int
    drafted: int
    looks: bool = False


class Sample(NamedTuple):
    """Seconds of one step.

    Attributes:
        gamma, drafted, looks: as :class:`Asked`.
        backlog: committed tokens that the drafter had to take in, ``BACKLOGS`` standing for all more; 1 where nothing
            was drafted.
        draft: proposing the tokens.
        verify: all else of the step.
        kept: tokens of the verified ones that are kept where some are rejected; 0 where none is.
    """

    gamma: int
    drafted: int
    looks: bool
    backlog: int
    draft: float
    verify: float
    kept: int = 0


class StepTimer(PolicyBase):
    """The loop's policy while it is timed: asks for the steps of a queue, one after the other, and times them.

    Attributes:
        queue: steps to time, the next one last. A step that the loop cut short stays in it.
        asked: the running step.
        reads: the signals of the running step; unlike other policies it declares them for every step.
        backlog, drafting: of the running step, told by the drafter: tokens to take in, and the two marks around it.
    """

    def __init__(self, stopwatch: Stopwatch, tell: Callable[[], None]) -> None:
        """``tell`` is called before each step."""
        self.queue: list[Asked] = []
        self.asked = Asked(0, 0)
        self.reads = NO_SIGNALS
        self.backlog = 1
        self.drafting: tuple[Mark, Mark] | None = None
        self.stopwatch = stopwatch
        self._tell = tell
        self._last: Mark | None = None
        self._marks: list[tuple[Asked, int, tuple[Mark, Mark] | None, Mark, Mark, int]] = []

    def reset(self) -> None:
        self._last = None

    def limit(self) -> int:
        self._tell()
        self.asked = Asked(1, 1) if self._last is None else self.queue[-1]
        self.reads = LOOKS if self.asked.looks else NO_SIGNALS
        self.drafting, self.backlog = None, 1
        return self.asked.gamma

    def observe(self, step: Step) -> None:
        now = self.stopwatch.mark()
        if self._last is not None and step.drafted == self.asked.gamma:
            kept = step.accepted + 1 if step.accepted < step.drafted else 0
            self._marks.append((self.queue.pop(), self.backlog, self.drafting, self._last, now, kept))
        self._last = now

    def ends_output(self, token: int) -> bool:
        return self._last is not None and len(self.queue) == 1

    def samples(self) -> list[Sample]:
        """The steps timed since the last call, once the device has done its work."""
        marks, self._marks = self._marks, []
        samples = []
        for asked, backlog, drafting, start, end, kept in marks:
            draft = 0.0 if drafting is None else seconds_between(*drafting)
            rest = seconds_between(start, end) - draft
            samples.append(Sample(*asked, min(backlog, BACKLOGS), draft, rest, kept))
        return samples


class TimedDrafter:
    """A drafter whose proposals are timed, and filled up to the length asked for.

    Prompt lookup without a match has less to propose, and would leave long verifications unmeasured. Of a model that
    drafts slowly a few tokens are enough to time a long verification.
    """

    def __init__(self, drafter: Drafter, timer: StepTimer, filler: int) -> None:
        """Missing tokens are replaced by the token ``filler``."""
        self._drafter = drafter
        self._timer = timer
        self._filler = filler
        self._proposed = 0

    def prefill(self, context: list[int]) -> None:
        self._drafter.prefill(context)

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        drafter = self._drafter
        if not isinstance(drafter, DraftsUnread):
            return None
        draft = self._timed(lambda: drafter.propose_unread(min(limit, self._timer.asked.drafted)))
        if draft is None or self._proposed == limit:
            return draft
        tokens = functional.pad(draft.tokens, (0, limit - self._proposed), value=self._filler)
        return UnreadDraft(tokens, self._filled(draft.probabilities, limit))

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        asked = min(limit, self._timer.asked.drafted)
        draft = self._timed(lambda: self._drafter.propose(asked, keep_drafting, reads))
        if self._proposed == limit:
            return draft
        tokens = draft.tokens + [self._filler] * (limit - self._proposed)
        return Draft(tokens, self._filled(draft.probabilities, limit), draft.signals)

    def _filled(self, probabilities: Tensor | None, limit: int) -> Tensor | None:
        """Distributions of a draft with those of the tokens filled in, which are certain."""
        if probabilities is None:
            return None
        certain = torch.zeros_like(probabilities[:1])
        certain[:, self._filler] = 1.0
        return torch.cat((probabilities, certain.expand(limit - len(probabilities), -1)))

    def _timed(self, propose: Callable[[], Any]) -> Any:
        self._timer.backlog = max(1, backlog_of(self._drafter))
        begun = self._timer.stopwatch.mark()
        draft = propose()
        if draft is not None:
            self._timer.drafting = begun, self._timer.stopwatch.mark()
            self._proposed = len(draft.tokens)
        return draft

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._drafter.commit(min(accepted, self._proposed), tokens)


class KeepsPrompt:
    """A model that takes a prompt in once: where the next one begins alike, its cache is rolled back to there.

    Taking in a long prompt before every round would leave little of the time for the steps.
    """

    def __init__(self, model: CachedModel) -> None:
        self._model = model
        self._held: list[int] = []
        self._begins = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def length(self) -> int:
        return 0 if self._begins else self._model.length

    def reset(self) -> None:
        self._begins = True

    def truncate(self, length: int) -> None:
        del self._held[length:]
        self._model.truncate(length)

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        if not self._begins:
            return self._model.forward(tokens, last_only)
        self._begins, before, self._held = False, self._held, tokens.tolist()
        pairs = zip(before, self._held[:-1], strict=False)
        shared = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(before), len(tokens) - 1))
        if not shared or not last_only:  # what is no prompt is read whole
            shared = 0
            self._model.reset()
        elif shared < self._model.length:
            self._model.truncate(shared)
        return self._model.forward(tokens[shared:], last_only)
