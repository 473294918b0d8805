"""Which draft length at which load: batches of several sizes replayed on a trace, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.judging.batched import replay_batch
from draftgauge.judging.speed import Speed
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.policies.batch import make_batch_policy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, conversations

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
