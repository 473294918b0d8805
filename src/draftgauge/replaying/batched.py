"""A batch replayed on a trace of single requests: cursors in lockstep, each over prompts of its own.

What a request commits does not depend on its neighbours, so the trace of single requests holds the outcome of every
step of any batch. What a step takes depends on all of them: the drafter's passes, one a depth over the requests that
still draft, and one verification of all tokens. Passes in which requests between others are missing, or have fewer
tokens than others, take longer than even ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy, Opening
from draftgauge.replaying.views import check_prompt_tokens, signal_arrays
from draftgauge.traces.batch_costs import BatchCosts
from draftgauge.traces.trace import Trace

ROUNDS = 8  # requests that each slot serves at least, by default


@dataclass(frozen=True)
class BatchReplay:
    """What a batch did on a trace.

    Attributes:
        batch: requests at once.
        steps: of the batch.
        committed, drafted, verified, accepted: tokens of all requests; verified ones without those that every request
            takes in besides.
        seconds: modelled.
    """

    batch: int
    steps: int
    committed: int
    drafted: int
    verified: int
    accepted: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens over modelled seconds, of the whole batch."""
        return self.committed / self.seconds

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens of one request in one step."""
        return self.committed / (self.steps * self.batch)


def resampled(prompts: int, batch: int, rng: np.random.Generator) -> list[int]:
    """A queue of prompts drawn with replacement, long enough that its end hardly matters."""
    drawn: list[int] = rng.integers(prompts, size=max(prompts, ROUNDS * batch)).tolist()
    return drawn


def replay_batch(trace: Trace, policy: BatchPolicy, costs: BatchCosts, batch: int, queue: Sequence[int]) -> BatchReplay:
    """Run a batch over prompts of a trace; each takes the first slot that becomes free.

    It ends where a slot finds no further prompt, so that every step is of a full batch.

    Args:
        trace: dense and greedy.
        policy: for ``batch`` slots.
        costs: measured for batches of this size.
        batch: requests at once.
        queue: indices into ``trace.prompts``, at least ``batch``.

    Raises:
        TraceError: for a trace of sampled decoding, too few prompts, or costs that do not reach so far.
    """
    if trace.sampled is not None:
        raise TraceError("batches are replayed on greedy traces: record one at temperature 0")
    if len(queue) < batch:
        raise TraceError(f"a batch of {batch} needs as many prompts, and there are {len(queue)}")
    return _Batch(trace, policy, costs, batch).run(queue)


@dataclass
class _Cursor:
    """A slot's place in its prompt's rows, and the tokens that its drafter has yet to read."""

    first: int
    row: int
    end: int
    prompt_tokens: int
    backlog: int = 1

    @property
    def position(self) -> int:
        return self.row - self.first

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.position


@dataclass
class _Passes:
    """Passes of one kind, column by column."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    padded: list[int] = field(default_factory=list)

    def add(self, rows: int, tokens: int, context: int, padded: int) -> None:
        self.rows.append(rows)
        self.tokens.append(tokens)
        self.contexts.append(context)
        self.padded.append(padded)

    def columns(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(np.array(each, np.int64) for each in (self.rows, self.tokens, self.contexts, self.padded))


class _Batch:
    def __init__(self, trace: Trace, policy: BatchPolicy, costs: BatchCosts, batch: int) -> None:
        self.trace, self.policy, self.costs, self.batch = trace, policy, costs, batch
        self.asks = asks_after_each_token(policy.reads)
        self.reads_text = SignalName.TEXT in policy.reads
        if self.reads_text:
            check_prompt_tokens(trace)
        self.gamma_max = min(trace.gamma_max, costs.gamma_max)
        self.accepts = trace.accepted.tolist()
        self.drafted = trace.drafted.tolist()
        self.tokens = trace.token.tolist() if self.reads_text else []
        self.columns = self._columns() if self.asks else []
        self.slots: dict[int, _Cursor] = {}
        self.first, self.onward, self.verifications = _Passes(), _Passes(), _Passes()
        self.shapes: list[tuple[int, int]] = []  # of every step: most tokens of a request, passes of the drafter
        self.counts = {"committed": 0, "drafted": 0, "verified": 0, "accepted": 0}

    def run(self, queue: Sequence[int]) -> BatchReplay:
        waiting, steps = iter(queue), 0
        for slot in range(self.batch):
            self.admit(slot, waiting)
        while len(self.slots) == self.batch:
            steps += 1
            for slot in self.step():
                del self.slots[slot]
                self.admit(slot, waiting)
        return BatchReplay(self.batch, steps, **self.counts, seconds=self.seconds(steps))

    def admit(self, slot: int, waiting: Iterator[int]) -> None:
        for prompt in waiting:
            first, end = self.trace.offsets[prompt : prompt + 2].tolist()
            info = self.trace.prompts[prompt]
            self.slots[slot] = _Cursor(first, first, end, info.prompt_tokens)
            self.slots = dict(sorted(self.slots.items()))
            self.policy.begin(slot, info.prompt_token)
            return

    def step(self) -> list[int]:
        """One step of all slots; those whose prompts ended."""
        context = max(cursor.context for cursor in self.slots.values())
        shown = self.propose(context)
        verified = self.policy.verified({slot: len(signals) for slot, signals in shown.items()})
        counts = [verified[slot] + 1 for slot in self.slots]
        padded = len(counts) * max(counts) - sum(counts)
        self.verifications.add(len(counts), sum(counts), context, padded)
        self.shapes.append((max(counts), max(map(len, shown.values()))))
        return [slot for slot, cursor in self.slots.items() if self.commit(slot, cursor, verified[slot], shown[slot])]

    def propose(self, context: int) -> dict[int, list[Signal]]:
        """The signals of what each slot drafts."""
        caps = {slot: self.cap(cursor) for slot, cursor in self.slots.items()}
        backlog = {slot: cursor.backlog for slot, cursor in self.slots.items()}
        shown: dict[int, list[Signal]] = {slot: [] for slot in self.slots}
        slots, depth = self.policy.first(Opening(caps, backlog, context)), 0
        while slots:
            depth += 1
            missing = slots[-1] + 1 - slots[0] - len(slots)
            if depth == 1:
                self.first.add(len(slots), sum(backlog[slot] for slot in slots), context, missing)
            else:
                self.onward.add(len(slots), len(slots), context, missing)
            able = {}
            for slot in slots:
                signal = self.signal(self.slots[slot].row, depth)
                shown[slot].append(signal)
                if depth < caps[slot]:
                    able[slot] = signal
                else:
                    self.policy.drafted_last(slot, signal)
            slots = self.policy.onward(able) if able else []
        return shown

    def commit(self, slot: int, cursor: _Cursor, verified: int, shown: list[Signal]) -> bool:
        accepted = min(verified, self.accepts[cursor.row])
        committed = min(accepted + 1, cursor.end - cursor.row)
        text = self.tokens[cursor.row : cursor.row + committed] if self.reads_text else ()
        proposed = min(verified, self.drafted[cursor.row])  # what follows an end token was drafted and is no proposal
        self.policy.observe(slot, Step(proposed, accepted, committed, shown[:proposed], float("nan"), text))
        for name, count in zip(self.counts, (committed, len(shown), verified, accepted), strict=True):
            self.counts[name] += count
        if shown:
            cursor.backlog = accepted + 1 - min(accepted, len(shown) - 1)
        else:
            cursor.backlog += committed
        cursor.row += committed
        return cursor.row >= cursor.end

    def cap(self, cursor: _Cursor) -> int:
        """The most tokens that a slot may draft; an end token ends a draft only where drafted tokens are read."""
        room = min(self.gamma_max, self.trace.max_new_tokens - 1 - cursor.position)
        return min(room, self.drafted[cursor.row]) if self.asks else room

    def signal(self, row: int, depth: int) -> Signal:
        if not self.asks:
            return Signal(depth, float("nan"), float("nan"), float("nan"))
        confidence, entropy, margin, token = (column[row][depth - 1] for column in self.columns)
        return Signal(depth, confidence, entropy, margin, int(token))

    def seconds(self, steps: int) -> float:
        first, onward, verified = (each.columns() for each in (self.first, self.onward, self.verifications))
        spent = [
            self.costs.draft_seconds(*first[:3]),
            self.costs.onward_seconds(onward[0], onward[2]),
            self.costs.verify_seconds(*verified[:3]),
            self.costs.ragged_draft_seconds(self.batch, first[3]),
            self.costs.ragged_draft_seconds(self.batch, onward[3]),
            self.costs.ragged_verify_seconds(self.batch, verified[3]),
        ]
        if self.asks:
            spent += [self.costs.asking_seconds(each) for each in (first[0], onward[0])]
        rest = steps * float(self.costs.step_seconds(self.batch))
        shapes = np.array(self.shapes)
        repeats = shapes[1:][(shapes[1:] == shapes[:-1]).all(axis=1)]
        saved = self.costs.repeat_seconds(self.batch, repeats[:, 1] > 0).sum()
        return float(sum(each.sum() for each in spent)) + rest + self._deciding(steps) - float(saved)

    def _deciding(self, steps: int) -> float:
        """What the policy says that deciding takes it, for all requests, and what ranking them takes."""
        decision = self.policy.decision
        requests, drafted = steps * self.batch, self.counts["drafted"]
        ranking = self.costs.ranking_seconds(self.batch, steps, requests + drafted) if self.policy.ranks else 0.0
        deciding = decision.step * requests + decision.token * drafted + decision.committed * self.counts["committed"]
        return ranking + deciding

    def _columns(self) -> list[list[list[float]]]:
        arrays = signal_arrays(self.trace, self.policy.reads)
        columns = [values.tolist() for values in (arrays.confidence, arrays.entropy, arrays.margin)]
        return [*columns, self.trace.draft_token.tolist()]
