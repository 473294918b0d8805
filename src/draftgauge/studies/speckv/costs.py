"""What a step costs by compression, from timed runs: seconds = steps x t_verify + drafted tokens x t_draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftgauge.statistics.bootstrap import LEVEL, RESAMPLES, draw_counts
from draftgauge.studies.speckv.records import COMPRESSIONS, Floats, Records, Timings


@dataclass(frozen=True)
class StepCost:
    """A compression's fitted costs in seconds, with 95% intervals by resampling prompts, and how far the runs lie from
    them.

    Attributes:
        verify, draft: of one verification, and of one drafted token.
        verify_interval, draft_interval: their ends.
        residual, worst: root mean square and largest relative error of the runs' times.
        explained: share of the variance of the runs' times (R squared).
    """

    verify: float
    draft: float
    verify_interval: tuple[float, float]
    draft_interval: tuple[float, float]
    residual: float
    worst: float
    explained: float

    @property
    def ratio(self) -> float:
        """Cost of a drafted token in verifications: the dial of the best draft length."""
        return self.draft / self.verify


def fit_costs(records: Records, timings: Timings) -> tuple[StepCost, ...]:
    """One fit for each compression, least squares of relative errors over its 80 runs.

    The last step of a run counts with what it really drafted. A constant for reading the prompt comes out between -4
    and 19 ms and leaves the residuals as they are, so there is none.
    """
    return tuple(_fit(records, timings, c) for c in range(len(COMPRESSIONS)))


def cost_rows(costs: Sequence[StepCost]) -> list[dict[str, Any]]:
    """Flat rows, in milliseconds and percent."""
    return [
        {
            "finding": "cost",
            "compression": name,
            "draft_ms": 1e3 * cost.draft,
            "draft_ms_low": 1e3 * cost.draft_interval[0],
            "draft_ms_high": 1e3 * cost.draft_interval[1],
            "verify_ms": 1e3 * cost.verify,
            "verify_ms_low": 1e3 * cost.verify_interval[0],
            "verify_ms_high": 1e3 * cost.verify_interval[1],
            "cost_ratio": cost.ratio,
            "residual_percent": 100 * cost.residual,
            "worst_residual_percent": 100 * cost.worst,
            "r_squared": cost.explained,
        }
        for name, cost in zip(COMPRESSIONS, costs, strict=True)
    ]


def _fit(records: Records, timings: Timings, compression: int) -> StepCost:
    chosen = records.runs.compression == compression
    seconds, prompt = timings.seconds[chosen], records.runs.prompt[chosen]
    counts = np.column_stack([records.runs.steps[chosen], records.runs.drafted[chosen]]).astype(np.float64)
    relative = counts / seconds[:, None]  # weights 1 / seconds: what is fitted to is 1 everywhere
    # A resample is how often each prompt counts, so it needs only the normal equations of each prompt.
    left, right = np.zeros((records.prompts, 2, 2)), np.zeros((records.prompts, 2))
    np.add.at(left, prompt, relative[:, :, None] * relative[:, None, :])
    np.add.at(right, prompt, relative)
    drawn = draw_counts(records.prompts, RESAMPLES, 0)
    resampled: Floats = np.linalg.solve(np.einsum("rp,pij->rij", drawn, left), (drawn @ right)[:, :, None])[:, :, 0]
    verify, draft = np.linalg.solve(left.sum(axis=0), right.sum(axis=0))
    errors = counts @ [verify, draft] - seconds
    ends = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return StepCost(
        verify=float(verify),
        draft=float(draft),
        verify_interval=(float(ends[0, 0]), float(ends[1, 0])),
        draft_interval=(float(ends[0, 1]), float(ends[1, 1])),
        residual=float(np.sqrt(np.mean((errors / seconds) ** 2))),
        worst=float(np.abs(errors / seconds).max()),
        explained=float(1 - (errors**2).sum() / ((seconds - seconds.mean()) ** 2).sum()),
    )
