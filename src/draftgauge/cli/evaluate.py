"""``draftgauge evaluate``: a trained drafter on held-out prompts."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import progress, show_table
from draftgauge.requests import EvaluateRequest

BY_DEPTH = {
    "depth": "depth",
    "alpha": "alpha [95%]",
    "agreement": "agreement, all positions",
    "survival": "all right so far",
}
WHOLE = {
    "mat": "MAT [95%]",
    "live_mat": "live MAT",
    "tokens_per_second": "tokens/s",
    "ratio_to_plain": "x plain",
    "draft_ms": "ms/drafted token",
    "retention": "retention",
    "tree_mat": "tree MAT",
}
PARTS = {"task": "task", "measure": "measure", "estimate": "estimate [95%]"}


def evaluate(request: EvaluateRequest) -> list[dict[str, Any]]:
    from draftgauge.api.evaluate import evaluate as run

    with progress() as advance:
        rows = run(request, progress=advance)
    depths = [row for row in rows if "depth" in row]
    show_table("Acceptance by depth (alpha: given that all before it was accepted)", depths, BY_DEPTH)
    show_table("The drafter", (row for row in rows if "mat" in row), WHOLE)
    show_table("By task", (row for row in rows if "measure" in row), PARTS)
    return rows
