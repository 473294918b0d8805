"""A batch replayed on a trace of single requests: cursors in lockstep, each over prompts of its own.

What a request commits does not depend on its neighbours, so the trace of single requests holds the outcome of every
step of any batch. What a step takes depends on all of them: the drafter's passes, one a depth over the requests that
still draft, and one verification of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.judging.positions import check_prompt_tokens, signal_arrays
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy, WholeBatch
from draftgauge.traces.batch_costs import BatchCosts
from draftgauge.traces.trace import Trace

NAN = float("nan")


@dataclass(frozen=True)
class BatchReplay:
    """What a batch did on a trace: steps of the batch, tokens of all requests, modelled seconds."""

    batch: int
    steps: int
    committed: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.committed / self.seconds

    @property
    def tokens_per_step(self) -> float:
        return self.committed / (self.steps * self.batch)


def replay_batch(trace: Trace, policy: BatchPolicy, costs: BatchCosts, batch: int, queue: Sequence[int]) -> BatchReplay:
    """Run a batch over prompts of a trace; each takes the first slot that becomes free.

    It ends where a slot finds no further prompt, so that every step is of a full batch.

    Args:
        trace: dense and greedy.
        queue: indices into ``trace.prompts``, at least ``batch``.
    """
    if trace.sampled is not None:
        raise TraceError("batches are replayed on greedy traces: record one at temperature 0")
    if len(queue) < batch:
        raise TraceError(f"a batch of {batch} needs as many prompts, and there are {len(queue)}")
    return _Batch(trace, policy, costs, batch).run(queue)


@dataclass
class _Cursor:
    """A slot's place in its prompt's rows, and the committed tokens that its drafter has yet to take in."""

    first: int
    row: int
    end: int
    prompt_tokens: int
    backlog: int = 1

    @property
    def context(self) -> int:
        return self.prompt_tokens + self.row - self.first


class _Batch:
    def __init__(self, trace: Trace, policy: BatchPolicy, costs: BatchCosts, batch: int) -> None:
        self.trace, self.policy, self.costs, self.batch = trace, policy, costs, batch
        self.asks = asks_after_each_token(policy.reads)
        self.reads_text = SignalName.TEXT in policy.reads
        if self.reads_text:
            check_prompt_tokens(trace)
        self.gamma_max = min(trace.gamma_max, costs.gamma_max)
        arrays = signal_arrays(trace, policy.reads)
        self.columns = (arrays.confidence, arrays.entropy, arrays.margin)
        self.slots: dict[int, _Cursor] = {}
        # Of every pass: requests, tokens, context.
        self.drafts: list[tuple[int, int, int]] = []
        self.verifications: list[tuple[int, int, int]] = []
        self.counts = {"committed": 0, "drafted": 0, "accepted": 0}

    def run(self, queue: Sequence[int]) -> BatchReplay:
        waiting = list(reversed(queue))
        for slot in range(self.batch):
            self.admit(slot, waiting.pop())
        while len(self.slots) == self.batch:
            for slot in self.step():
                del self.slots[slot]
                if waiting:
                    self.admit(slot, waiting.pop())
        return BatchReplay(self.batch, len(self.verifications), **self.counts, seconds=self.seconds())

    def admit(self, slot: int, prompt: int) -> None:
        first, end = self.trace.offsets[prompt : prompt + 2].tolist()
        info = self.trace.prompts[prompt]
        self.slots = dict(sorted({**self.slots, slot: _Cursor(first, first, end, info.prompt_tokens)}.items()))
        self.policy.begin(slot, info.prompt_token)

    def step(self) -> list[int]:
        context = max(cursor.context for cursor in self.slots.values())
        shown = self.propose(context)
        verified = {slot: len(signals) for slot, signals in shown.items()}
        if isinstance(self.policy, WholeBatch):
            verified = self.policy.admit(shown, context)
        self.verifications.append((len(shown), sum(verified.values()) + len(shown), context))
        slots = list(self.slots.items())
        return [slot for slot, cursor in slots if self.commit(slot, cursor, shown[slot], verified[slot])]

    def propose(self, context: int) -> dict[int, list[Signal]]:
        """The signals of what each slot drafts."""
        caps = {slot: self.cap(cursor) for slot, cursor in self.slots.items()}
        shown: dict[int, list[Signal]] = {slot: [] for slot in self.slots}
        slots, depth = self.policy.first(caps), 0
        while slots:
            depth += 1
            tokens = sum(self.slots[slot].backlog for slot in slots) if depth == 1 else len(slots)
            self.drafts.append((len(slots), tokens, context))
            for slot in slots:
                shown[slot].append(self.signal(self.slots[slot].row, depth))
            able = {slot: shown[slot][-1] for slot in slots if depth < caps[slot]}
            slots = self.policy.onward(able) if able else []
        return shown

    def commit(self, slot: int, cursor: _Cursor, shown: list[Signal], verified: int) -> bool:
        """Commit what is accepted; whether the prompt's output has ended."""
        drafted = len(shown)
        accepted = min(verified, int(self.trace.accepted[cursor.row]))
        committed = min(accepted + 1, cursor.end - cursor.row)
        text = self.trace.token[cursor.row : cursor.row + committed].tolist() if self.reads_text else ()
        # What follows an end token was drafted and is no proposal.
        proposed = min(verified, int(self.trace.drafted[cursor.row]))
        self.policy.observe(slot, Step(proposed, accepted, committed, shown[:proposed], NAN, text))
        self.counts["committed"] += committed
        self.counts["drafted"] += drafted
        self.counts["accepted"] += accepted
        cursor.backlog = accepted + 1 - min(accepted, drafted - 1) if shown else cursor.backlog + committed
        cursor.row += committed
        return cursor.row >= cursor.end

    def cap(self, cursor: _Cursor) -> int:
        room = min(self.gamma_max, self.trace.max_new_tokens - 1 - (cursor.row - cursor.first))
        return min(room, int(self.trace.drafted[cursor.row])) if self.asks else room

    def signal(self, row: int, depth: int) -> Signal:
        if not self.asks:
            return Signal(depth, NAN, NAN, NAN)
        confidence, entropy, margin = (float(column[row, depth - 1]) for column in self.columns)
        return Signal(depth, confidence, entropy, margin, int(self.trace.draft_token[row, depth - 1]))

    def seconds(self) -> float:
        drafts, verifications = (
            np.array(passes, np.int64).reshape(-1, 3).T for passes in (self.drafts, self.verifications)
        )
        drafting = self.costs.draft_seconds(*drafts) + (self.costs.signal_seconds(drafts[0]) if self.asks else 0.0)
        return float(np.sum(drafting) + np.sum(self.costs.verify_seconds(*verifications)))
