"""Acceptance by depth: the chance that the token drafted at each depth is accepted, given that all before it were."""

from __future__ import annotations

import math

import numpy as np

from draftgauge.replay.bootstrap import RESAMPLES, ratio_interval
from draftgauge.replay.evaluate import Row, task_masks
from draftgauge.replay.simulate import prompt_of_rows, sum_by_prompt
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.trace import Trace


def acceptance_by_depth(trace: Trace, *, resamples: int = RESAMPLES, seed: int = 0) -> list[Row]:
    """Conditional acceptance rates ``alpha_k`` of every task, and of all prompts together, over all positions of a trace.

    ``alpha_k`` is the share of accepted tokens among those drafted at depth ``k`` whose ``k - 1`` predecessors were accepted.
    Tokens drafted past the end of the recorded output are left out: what the target would have said there is not known.

    Returns:
        Rows with ``compression``, ``task``, ``depth`` (1..gamma_max), ``rate`` with ``low`` and ``high`` (95%, resampled by
        prompt; None where nothing reached that depth) and ``positions``, how many did.
    """
    prompt, count = prompt_of_rows(trace), len(trace.prompts)
    known = np.minimum(trace.drafted, remaining_rows(trace.offsets))  # [P] drafted tokens with a recorded token to compare with
    reached, accepted = [], []  # by depth, each [prompts]
    for depth in range(1, trace.gamma_max + 1):
        here = (trace.accepted >= depth - 1) & (known >= depth)
        reached.append(sum_by_prompt(prompt, here, count))
        accepted.append(sum_by_prompt(prompt, here & (trace.accepted >= depth), count))
    rows: list[Row] = []
    for task, mask in task_masks(trace):
        for depth, (above, below) in enumerate(zip(accepted, reached, strict=True), start=1):
            rate, low, high = ratio_interval(above[mask], below[mask], resamples=resamples, seed=seed)
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "depth": depth,
                    "rate": _defined(rate),
                    "low": _defined(low),
                    "high": _defined(high),
                    "positions": int(below[mask].sum()),
                }
            )
    return rows


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
