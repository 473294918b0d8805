"""Timing the steps of the live loop by a policy that asks for given draft lengths, and a drafter that is timed.

A schedule says which lengths and contexts are timed within the time given, and the steps of a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
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


PLAIN_STEPS, FEW_PLAIN_STEPS = 8, 3  # in a row, the first of them not counted; where there is time, and where not
LEAST_ROUNDS = 6  # samples of every length and context: rather fewer lengths than fewer samples
NEAR = 9  # lengths up to here, and the ends of rows in fours beyond, are verified even where drafting them takes long
IDLE_RUNS = (1, 3, BACKLOGS - 1)  # steps that draft nothing, by turns; the next draft has more tokens to prefill
LOOKED_AT = (2, 4)  # draft lengths that are timed with a policy that looks at each token


@dataclass
class Bench:
    """The measurements at one context length, for which decoding starts at ``start`` tokens."""

    context: int
    start: int
    samples: list[Sample] = field(default_factory=list)
    plain: list[float] = field(default_factory=list)
    prefill_seconds: float = 0.0  # of the first run; later ones begin with what is held


class Schedule(NamedTuple):
    """What is measured, the seconds until every length has been timed once, and what is said of what is left out.

    Lengths that are ``verified`` and not ``drafted`` are filled up behind one drafted token.
    """

    benches: list[Bench]
    drafted: tuple[int, ...]
    verified: tuple[int, ...]
    plain_steps: int
    seconds: float
    note: str = ""


def scheduled(benches: list[Bench], longest: int, seconds: float, spent: float, overlaps: bool) -> Schedule:
    """As many lengths up to the ``longest``, and contexts, as the time that is left of ``seconds`` allows.

    What they take is read off the steps so far of the shortest context.
    """
    samples = benches[0].samples
    verify = by_length(samples, lambda sample: sample.verify)
    drafting = by_length(samples, lambda sample: sample.draft, "drafted")
    shortest, last, draft = (float(np.median(of)) for of in (verify[0], verify[longest], drafting[longest]))
    prefill = benches[0].prefill_seconds / benches[0].start
    every = tuple(range(longest + 1))
    doubling = tuple(length for length in every if length & (length - 1) == 0 or length == longest)
    fewest = tuple(sorted({0, 1, longest}))
    # Rows in fours are full behind three drafted tokens, and begin anew behind four.
    near = tuple(n for n in every if n <= NEAR or n % 4 in (0, 3) or n == longest)
    nearer, nearest = (
        tuple(n for n in near if n in few or n == longest) for few in (range(NEAR + 1), (*range(5), 7, 8))
    )
    # A draft that runs under the launches of the verification is no draft of one token that is filled up.
    wide = (doubling, doubling if overlaps else near)
    narrow = [(fewest, verified) for verified in ((near, nearer, nearest, fewest) if not overlaps else (fewest,))]
    ends, one = [benches[0], benches[-1]] if len(benches) > 1 else benches, benches[:1]
    choices = [(benches, (every, every)), (benches, wide), (ends, wide), (one, wide)]
    for some, (drafted, verified) in choices + [(one, lengths) for lengths in narrow]:
        plain_steps = PLAIN_STEPS if drafted == every else FEW_PLAIN_STEPS
        schedule = Schedule(some, drafted, verified, plain_steps, 0.0)
        rounds = [[Asked(1, 1), *one_round(schedule, number, np.random.default_rng(0), overlaps)] for number in (1, 2)]
        steps = sum(
            shortest + ((last - shortest) * asked.gamma + draft * asked.drafted) / longest
            for pieces in rounds
            for asked in pieces
        ) / len(rounds)
        # The longest context is taken in anew at every second round, a single one only with another text.
        again = prefill * some[-1].start / (2 if len(some) > 1 else LEAST_ROUNDS)
        each = again + len(some) * (steps + shortest * plain_steps)
        if spent + LEAST_ROUNDS * each <= seconds:
            break
    if (some, drafted) == (benches, every):
        return schedule._replace(seconds=spent + each)
    named, where = ", ".join(map(str, drafted)), ", ".join(str(bench.context) for bench in some)
    besides = ", ".join(str(length) for length in verified if length not in drafted)
    note = (
        f"a step takes {shortest:.2g} to {last + draft:.2g} s, so within {seconds:g} s drafts of {named} tokens "
        f"were timed at contexts of {where} tokens{besides and f', verifying {besides} besides'}, and costs between "
        f"them are interpolated"
        f"{'' if spent + each <= seconds else f'; that alone takes about {spent + each:.2g} s'}"
    )
    return schedule._replace(seconds=spent + each, note=note)


def one_round(schedule: Schedule, number: int, rng: np.random.Generator, overlaps: bool = False) -> list[Asked]:
    """Every length once in random order, some with a policy that looks on, and a run of steps that draft nothing.

    Where drafting takes most of the time, the long drafts are left out of every second round.
    """
    drafted = schedule.drafted
    looked_at = {min(length, drafted[-1]) for length in (LOOKED_AT if len(drafted) > 3 else LOOKED_AT[:1])}
    looked_at |= {drafted[-1]} if overlaps else set()
    if schedule.verified != drafted and number % 2:
        drafted, looked_at = drafted[:2], set()
    pieces = [[Asked(length, length if length in drafted else 1)] for length in schedule.verified[1:]]
    pieces += [[Asked(length, length, looks=True)] for length in sorted(looked_at)]
    # Steps are taken from the end, so the draft that follows the run comes first.
    pieces.append([Asked(1, 1), *[Asked(0, 0)] * IDLE_RUNS[number % len(IDLE_RUNS)]])
    return [asked for index in rng.permutation(len(pieces)) for asked in pieces[index]]


def by_length(
    samples: Sequence[Sample], value: Callable[[Sample], float], length: str = "gamma"
) -> dict[int, list[float]]:
    values: dict[int, list[float]] = {}
    for sample in samples:
        if not sample.looks:
            values.setdefault(getattr(sample, length), []).append(value(sample))
    return values
