"""``draftgauge bench``: policies and baselines live, interleaved prompt by prompt."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import BenchRequest
from draftgauge.cli.console import progress, show_table

COLUMNS = {
    "compression": "target",
    "policy": "policy",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "tokens/s",
    "tokens_per_second_low": "95% from",
    "tokens_per_second_high": "to",
    "ratio_to_plain": "x plain",
    "gain": "over best fixed",
    "ratio_to_best_transformers": "x best transformers",
    "mismatches": "mismatches",
}


def bench(request: BenchRequest) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.bench import bench as run

    with progress() as advance:
        rows = run(request, progress=advance)
    show_table("All tasks together, live", (row for row in rows if row["task"] == "all"), COLUMNS)
    return rows
