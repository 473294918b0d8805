"""Which draft length at which load: batches of several sizes replayed on a trace, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.batch import make_batch_policy
from draftgauge.replaying.batched import replay_batch, resampled
from draftgauge.replaying.rows import sum_by_prompt
from draftgauge.statistics.bootstrap import columns
from draftgauge.statistics.paired import paired_gain
from draftgauge.traces.build import conversations
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

NONE = "fixed:0"


def batch_rows(
    trace: Trace, costs: CostCurve, batches: Sequence[int], specs: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Every fixed length, and some policies, in batches of several sizes, over the same resampled prompts.

    ``specs`` are of policies, one for each request, or of :data:`~draftgauge.policies.batch.WHOLE_BATCH`, one for all.

    Returns:
        One row for each batch size and policy: ``batch``, ``policy``, ``gamma`` (None for a policy that is no fixed
        length), ``tokens_per_second`` of the whole batch, ``tokens_per_step`` and ``drafted_per_step`` of a request,
        ``ratio_to_none`` over the same batch without drafts, ``best``: the fastest fixed length of its batch, and
        ``gain`` over that with ``_low`` and ``_high`` (95%, paired by prompt, the turns of a conversation together).
    """
    passes = costs.of_batches(max(batches))
    longest = min(trace.gamma_max, passes.gamma_max)
    fixed = [f"fixed:{gamma}" for gamma in range(longest + 1)]
    rows: list[dict[str, Any]] = []
    conversation = conversations(trace)
    for batch in batches:
        queue = resampled(len(trace.prompts), batch, np.random.default_rng(0))
        of_batch: list[dict[str, Any]] = []
        timed: dict[str, list[NDArray[np.float64]]] = {}
        for spec in dict.fromkeys((*fixed, *specs)):
            policy = make_batch_policy(spec, batch, longest, costs, passes.verify_seconds)
            outcome = replay_batch(trace, policy, passes, batch, queue)
            timed[spec] = [sum_by_prompt(conversation, of, int(conversation.max()) + 1) for of in outcome.by_prompt]
            of_batch.append(
                {
                    "compression": trace.compression,
                    "batch": batch,
                    "policy": spec,
                    "gamma": fixed.index(spec) if spec in fixed else None,
                    "tokens_per_second": outcome.tokens_per_second,
                    "tokens_per_step": outcome.tokens_per_step,
                    "drafted_per_step": outcome.drafted / (outcome.steps * batch),
                }
            )
        plain = next(row["tokens_per_second"] for row in of_batch if row["policy"] == NONE)
        best = max((row for row in of_batch if row["gamma"] is not None), key=lambda row: row["tokens_per_second"])
        for row in of_batch:
            gain = columns("gain", paired_gain(*timed[row["policy"]], *timed[best["policy"]]))
            rows.append(row | {"ratio_to_none": row["tokens_per_second"] / plain, "best": row is best} | gain)
    return rows


def shown_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["best"] or row["gamma"] is None]
