"""What a recorded run says at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.api.runs import read_run
from draftgauge.replay.evaluate import best_fixed_gamma, hindsight_gain, task_masks
from draftgauge.traces.build import select
from draftgauge.traces.manifest import Manifest


def profile_rows(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row for every run and task (and ``all``): how much was recorded, how much is accepted, which length is best."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        manifest = Manifest.load(run)
        trace, costs = read_run(run)
        for task, mask in task_masks(trace):
            part = select(trace, mask)
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "prompts": len(part.prompts),
                    "tokens": part.positions,
                    "gamma_max": trace.gamma_max,
                    "mean_accepted": float(part.accepted.mean()),
                    "first_accepted": float(np.mean(part.accepted[part.drafted > 0] > 0)) if (part.drafted > 0).any() else None,
                    "best_fixed_gamma": best_fixed_gamma(part, costs),
                    "hindsight_gain": hindsight_gain(part, costs),
                    "cost_ratio": costs.cost_ratio(),
                    "verify_one_ms": 1e3 * costs.verify[len(costs.contexts) // 2][0],
                    "device": manifest.device,
                    "run": str(run),
                }
            )
    return rows
