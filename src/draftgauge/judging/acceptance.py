"""Acceptance by depth: the chance that the token drafted at each depth is accepted, given that all before it were."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.judging.evaluate import Row, task_masks
from draftgauge.judging.statistics.bootstrap import RESAMPLES, columns, ratio_interval
from draftgauge.traces.sampled import path_chances
from draftgauge.traces.trace import Trace, conversations, prompt_of_rows, sum_by_prompt


def acceptance_by_depth(trace: Trace, *, resamples: int = RESAMPLES) -> list[Row]:
    """Conditional acceptance rates ``alpha_k`` of every task, and of all prompts together, over all positions of a
    trace.

    ``alpha_k`` is the share of accepted tokens among those drafted at depth ``k`` whose ``k - 1`` predecessors were
    accepted. Tokens drafted past the end of the recorded output are left out: what the target would have said there is
    not known.

    Returns:
        Rows with ``compression``, ``task``, ``depth`` (1..gamma_max), ``alpha`` with ``_low`` and ``_high``, and
        ``positions``: how many reached that depth. ``alpha`` is None where nothing did. The interval is 95%, resampled
        by prompt, the turns of a conversation together; None for one prompt. For sampled decoding rates are means of
        chances, and ``positions`` is an average.
    """
    conversation = conversations(trace)
    reached, accepted = sums_by_depth(trace)
    rows: list[Row] = []
    for task, mask in task_masks(trace):
        chosen = np.unique(conversation[mask])
        for depth, (above, below) in enumerate(zip(accepted, reached, strict=True), start=1):
            rate = ratio_interval(above[chosen], below[chosen], resamples=resamples)
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "depth": depth,
                    **{key: None if math.isnan(value) else value for key, value in columns("alpha", rate).items()},
                    "positions": round(below[chosen].sum()),
                }
            )
    return rows


def sums_by_depth(trace: Trace) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """How many drafts reached each depth, and of how many the token there was accepted: ``[conversations]`` each."""
    conversation = conversations(trace)
    number, count = conversation[prompt_of_rows(trace)], int(conversation.max()) + 1
    reach, acceptance = map(np.nan_to_num, path_chances(trace))
    reached, accepted = ([sum_by_prompt(number, part, count) for part in of.T] for of in (reach, reach * acceptance))
    return reached, accepted
