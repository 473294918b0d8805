"""Which draft length at which load: batches of several sizes replayed on a trace of single requests, as rows.

Cursors go in lockstep, each over prompts of its own. What a request commits does not depend on its neighbours, so the
trace holds every step's outcome in any batch. What a step takes depends on all: the drafter's passes, one a depth over
requests that still draft, and one verification of all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import SignalName
from draftgauge.judging.replay import signal_arrays
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.policies.base import Signal, Step, asks_after_each_token
from draftgauge.policies.batch import BatchPolicy, WholeBatch, make_batch_policy
from draftgauge.traces.costs import BatchCosts, CostCurve
from draftgauge.traces.trace import Trace, check_prompt_tokens, context_lengths, conversations, draft_caps, draft_room

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


GROUPS = 8  # where there are as many conversations
ROUNDS = 4  # requests that each slot serves at least


def batch_rows(
    trace: Trace, costs: CostCurve, batches: Sequence[int], specs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every fixed length, and some policies, in batches of several sizes, over the same requests.

    ``specs`` are of policies, one for each request, or of :data:`~draftgauge.policies.batch.WHOLE_BATCH`, one for all.
    The requests of a batch share the time of its steps, so they are no independent samples. Intervals resample groups
    of prompts that are replayed by themselves (:func:`queues_of`).

    Returns:
        One row for each batch size and policy: ``batch``, ``policy``, ``gamma`` (None for a policy that is no fixed
        length). ``tokens_per_second`` is of the whole batch, ``tokens_per_step`` and ``drafted_per_step`` of a request,
        ``ratio_to_plain`` over the same batch without drafts. ``best`` marks the batch's fastest fixed length, ``gain``
        is over that, with ``_low`` and ``_high`` (95%, paired by group; NaN of a single group).
    """
    passes = costs.of_batches(max(batches))
    longest = min(trace.gamma_max, passes.gamma_max)
    fixed = [f"fixed:{gamma}" for gamma in range(longest + 1)]
    rows: list[dict[str, Any]] = []
    for batch in batches:
        queues = queues_of(conversations(trace), batch)
        of_batch: list[dict[str, Any]] = []
        speeds: dict[str, Speed] = {}
        for spec in dict.fromkeys((*fixed, *specs)):
            policy = make_batch_policy(spec, batch, longest, costs, passes)
            outcomes = [replay_batch(trace, policy, passes, batch, queue) for queue in queues]
            figures = [(of.committed, of.seconds, of.drafted, of.steps) for of in outcomes]
            committed, seconds, drafted, steps = np.array(figures).T  # each [groups]
            speeds[spec] = Speed(committed, seconds)
            of_batch.append(
                {
                    "compression": trace.compression,
                    "batch": batch,
                    "policy": spec,
                    "gamma": fixed.index(spec) if spec in fixed else None,
                    "tokens_per_second": speeds[spec].estimate,
                    "tokens_per_step": float(committed.sum() / steps.sum() / batch),
                    "drafted_per_step": float(drafted.sum() / steps.sum() / batch),
                }
            )
        plain = of_batch[0]["tokens_per_second"]  # that drafts nothing
        best = max((row for row in of_batch if row["gamma"] is not None), key=lambda row: row["tokens_per_second"])
        for row in of_batch:
            gain = columns("gain", speeds[row["policy"]].over(speeds[best["policy"]]).gain)
            rows.append(row | {"ratio_to_plain": row["tokens_per_second"] / plain, "best": row is best} | gain)
    return rows


def queues_of(conversation: NDArray[np.int64], batch: int) -> list[list[int]]:
    """Prompts dealt out at random to groups, as the requests that each group's batches take one after the other.

    A group has as many conversations as a batch has requests. With fewer than :data:`GROUPS` groups it has fewer, and
    its prompts come more than once. ``conversation`` ``[prompts]`` is the one that each is a turn of.
    """
    rng, count = np.random.default_rng(0), int(conversation.max()) + 1
    groups = max(count // batch, min(GROUPS, count))
    dealt = (rng.permutation(count) % groups)[conversation]
    queues = []
    for group in range(groups):
        prompts = np.flatnonzero(dealt == group)
        rounds = -(-ROUNDS * batch // len(prompts))
        queues.append([prompt for _ in range(rounds) for prompt in rng.permutation(prompts).tolist()])
    return queues


def shown_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["best"] or row["gamma"] is None]
