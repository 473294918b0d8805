"""What a recorded run says at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.api.runs import read_run
from draftgauge.api.served import read_differences
from draftgauge.replaying.evaluate import best_fixed_gamma, hindsight_gain, near_best_gammas, task_masks
from draftgauge.traces.build import select
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.trace import Trace


def differing_share(run: Path, manifest: Manifest, trace: Trace) -> float | None:
    """The share of positions of recorded answers that are not the target's choice."""
    if manifest.outputs is None:
        return None
    noted = read_differences(run)
    return sum(len(noted.get(prompt.index, ())) for prompt in trace.prompts) / trace.positions


def profile_rows(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row for every run and task (and ``all``): how much was recorded, how much is accepted, which length is best.

    ``near_best_from`` to ``near_best_to`` are the lengths within 2% of the best one: where they are many, another run
    may name another. ``differing`` is the share of positions, of recorded answers of a serving engine, whose token is
    not the target's choice; None where the target decoded. ``cost_doubt`` says why the costs are not to be
    trusted (:meth:`draftgauge.traces.costs.CostCurve.doubt`); None where nothing speaks against them.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        manifest = Manifest.load(run)
        trace, costs = read_run(run)
        differing = differing_share(run, manifest, trace)
        for task, mask in task_masks(trace):
            part = select(trace, mask)
            shortest, longest = near_best_gammas(part, costs)
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "prompts": len(part.prompts),
                    "tokens": part.positions,
                    "gamma_max": trace.gamma_max,
                    "mean_accepted": float(part.accepted.mean()),
                    "first_accepted": float(np.mean(part.accepted[part.drafted > 0] > 0))
                    if (part.drafted > 0).any()
                    else None,
                    "best_fixed_gamma": best_fixed_gamma(part, costs),
                    "near_best_from": shortest,
                    "near_best_to": longest,
                    "hindsight_gain": hindsight_gain(part, costs),
                    "cost_ratio": costs.cost_ratio(),
                    "cost_doubt": costs.doubt() or None,
                    "verify_one_ms": 1e3 * costs.verify[len(costs.contexts) // 2][0],
                    "differing": differing,
                    "device": manifest.device,
                    "run": str(run),
                }
            )
    return rows
