"""KVShot's figure of decay: acceptance by depth of any drafters along the same outputs of one target.

The paper's figure compares public drafters of Qwen3.5-4B: EAGLE-3 falls from .858 to .698, MTP from .741 to .594.
Its depths are counted from 0, here they are counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.acceptance import sums_by_depth
from draftgauge.judging.statistics.bootstrap import columns
from draftgauge.judging.statistics.crossed import Counts, alpha_intervals, difference, interval, retention
from draftgauge.traces.trace import Trace

DEPTHS = 7
MAX_NEW_TOKENS = 64


def decay_rows(traces: Mapping[str, Trace]) -> list[dict[str, Any]]:
    """Rows of drafters, the one with the least retention first; ``traces`` are of the same prompts and outputs.

    Drafters are compared at the deepest depth that all of them reached.

    Returns:
        Rows with ``drafter``, ``prompts``, ``alpha_1``, ``alpha_2``, ...: acceptance given that all before were
        accepted, None where no draft got so deep. ``compared_depth`` is the deepest that all drafters reached.
        ``loss`` is ``alpha_1`` minus the acceptance there, ``retention`` the latter over the former.
        ``retention_behind`` is the retention less that of the next row, paired by prompt. Each has ``_low`` and
        ``_high``, of 95%, resampled by prompt.
    """
    counts = {drafter: _counts(trace) for drafter, trace in traces.items()}
    deepest = {drafter: int((of.reached.sum((0, 1)) > 0).sum()) for drafter, of in counts.items()}
    if idle := [drafter for drafter, depth in deepest.items() if depth < 2]:
        raise DraftgaugeError(f"no draft of {idle[0]} got beyond its first token: leave it out, or give more prompts")
    depth = min(deepest.values())
    shared = {drafter: Counts(of.reached[..., :depth], of.accepted[..., :depth]) for drafter, of in counts.items()}
    order = sorted(shared, key=lambda drafter: interval(shared[drafter], retention).estimate)
    rows = []
    for drafter, following in zip(order, [*order[1:], None], strict=True):
        row: dict[str, Any] = {"drafter": drafter, "prompts": len(traces[drafter].prompts), "compared_depth": depth}
        for number, alpha in enumerate(alpha_intervals(counts[drafter]), start=1):
            row |= columns(f"alpha_{number}", alpha) if number <= deepest[drafter] else {f"alpha_{number}": None}
        row |= columns("loss", interval(shared[drafter], lambda alpha: np.asarray(alpha[..., 0] - alpha[..., -1])))
        row |= columns("retention", interval(shared[drafter], retention))
        if following is not None:
            row |= columns("retention_behind", difference(shared[drafter], shared[following], retention))
        rows.append(row)
    return rows


def decay_said(rows: Sequence[Mapping[str, Any]]) -> str:
    """Which drafter loses most, in words."""
    first = rows[0]
    depth, alpha = first["compared_depth"], first["alpha_1"]
    left = first[f"alpha_{depth}"]
    does = "loses most" if left < alpha else "gains least, and none loses"
    said = f"{first['drafter']} {does}: {left:.3f} at depth {depth} after {alpha:.3f} at depth 1"
    if len(rows) == 1 or first.get("retention_behind_low") is None:
        return f"{said}."
    behind, low, high = (first[f"retention_behind{end}"] for end in ("", "_low", "_high"))
    told = "they are not told apart" if low <= 0 <= high else "they differ"
    return f"{said}. Its retention less that of {rows[1]['drafter']} is {behind:.2f} [{low:.2f}, {high:.2f}]: {told}."


def _counts(trace: Trace) -> Counts:
    counts = (np.stack(sums, -1)[None, :, :DEPTHS] for sums in sums_by_depth(trace))
    return Counts(*(np.pad(of, ((0, 0), (0, 0), (0, DEPTHS - of.shape[-1]))) for of in counts))  # some draft no deeper
