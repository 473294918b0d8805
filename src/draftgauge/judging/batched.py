"""A batch replayed on a trace of single requests: cursors in lockstep, each over prompts of its own.

What a request commits does not depend on its neighbours, so the trace of single requests holds every step's outcome in
any batch. What a step takes depends on all: the drafter's passes, one a depth over requests that still draft, and one
verification of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.judging.positions import check_prompt_tokens, context_lengths, draft_caps, draft_room, signal_arrays
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy, WholeBatch
from draftgauge.traces.costs import BatchCosts
from draftgauge.traces.trace import Trace

NAN = float("nan")
Pass = tuple[int, int, int]  # requests, tokens, context


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
    asks, reads_text = asks_after_each_token(policy.reads), SignalName.TEXT in policy.reads
    if reads_text:
        check_prompt_tokens(trace)
    contexts = context_lengths(trace)
    caps = np.minimum(draft_caps(trace) if asks else draft_room(trace), min(trace.gamma_max, costs.gamma_max))
    arrays = signal_arrays(trace, policy.reads)
    fields = (arrays.confidence, arrays.entropy, arrays.margin)  # of a signal, between its depth and its token
    slots: dict[int, _Cursor] = {}
    drafts: list[Pass] = []
    verifications: list[Pass] = []
    counts = np.zeros(3, np.int64)  # committed, drafted, accepted
    waiting, free = iter(queue), list(range(batch))
    while True:
        for slot in free:
            prompt = next(waiting, None)
            if prompt is None:
                committed, drafted, accepted = counts.tolist()
                seconds = _seconds(costs, drafts, verifications, asks)
                return BatchReplay(batch, len(verifications), committed, drafted, accepted, seconds)
            slots[slot] = _Cursor(*trace.offsets[prompt : prompt + 2].tolist())
            policy.begin(slot, trace.prompts[prompt].prompt_token)
        context = int(max(contexts[cursor.row] for cursor in slots.values()))
        room = {slot: int(caps[cursor.row]) for slot, cursor in slots.items()}
        shown: dict[int, list[Signal]] = {slot: [] for slot in slots}
        drafting, depth = policy.first(room), 0
        while drafting:
            depth += 1
            tokens = sum(slots[slot].backlog for slot in drafting) if depth == 1 else len(drafting)
            drafts.append((len(drafting), tokens, context))
            for slot in drafting:
                at = slots[slot].row, depth - 1
                confidence, entropy, margin = (float(field[at]) if asks else NAN for field in fields)
                token = int(trace.draft_token[at]) if asks else -1
                shown[slot].append(Signal(depth, confidence, entropy, margin, token))
            able = {slot: shown[slot][-1] for slot in drafting if depth < room[slot]}
            drafting = policy.onward(able) if able else []
        verified = {slot: len(signals) for slot, signals in shown.items()}
        if isinstance(policy, WholeBatch):
            verified = policy.admit(shown, context)
        verifications.append((batch, sum(verified.values()) + batch, context))
        free = []
        for slot, cursor in slots.items():
            row, drafted = cursor.row, len(shown[slot])
            accepted = min(verified[slot], int(trace.accepted[row]))
            committed = min(accepted + 1, cursor.end - row)
            text = trace.token[row : row + committed].tolist() if reads_text else ()
            # What follows an end token was drafted and is no proposal.
            proposed = min(verified[slot], int(trace.drafted[row]))
            policy.observe(slot, Step(proposed, accepted, committed, shown[slot][:proposed], NAN, text))
            counts += (committed, drafted, accepted)
            cursor.backlog = accepted + 1 - min(accepted, drafted - 1) if drafted else cursor.backlog + committed
            cursor.row += committed
            if cursor.row >= cursor.end:
                free.append(slot)


@dataclass
class _Cursor:
    """A slot's place in the rows of its prompt, and the committed tokens that its drafter has yet to take in."""

    row: int
    end: int
    backlog: int = 1


def _seconds(costs: BatchCosts, drafts: list[Pass], verifications: list[Pass], asks: bool) -> float:
    drafted, verified = (np.array(passes, np.int64).reshape(-1, 3).T for passes in (drafts, verifications))
    drafting = costs.draft_seconds(*drafted) + (costs.signal_seconds(drafted[0]) if asks else 0.0)
    return float(np.sum(drafting) + np.sum(costs.verify_seconds(*verified)))
