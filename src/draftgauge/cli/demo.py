"""``draftgauge demo``: the whole path on the bundled pair, in a few minutes."""

from __future__ import annotations

import time
from typing import Any

from draftgauge.api.requests import DemoRequest
from draftgauge.cli.console import console, progress, show_table

POLICIES = {
    "compression": "target",
    "policy": "policy",
    "tokens_per_step": "tokens/step",
    "modelled_tokens_per_second": "modelled tokens/s",
    "live_tokens_per_second": "live tokens/s",
    "ratio_to_plain": "x plain",
    "mismatches": "mismatches",
}
LENGTHS = {
    "compression": "target",
    "task": "task",
    "best_fixed_gamma": "best gamma",
    "near_best_from": "within 2% from",
    "near_best_to": "to",
    "cost_ratio": "draft / verify cost",
    "hindsight_gain": "hindsight over best",
}


def demo(request: DemoRequest) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.demo import demo as run
    from draftgauge.api.report import REPORT_NAME

    started = time.monotonic()
    with progress() as advance:
        rows = run(request, progress=advance)
    show_table("All tasks together", (row for row in rows if row["task"] == "all" and "policy" in row), POLICIES)
    show_table("Which length to use", (row for row in rows if "best_fixed_gamma" in row), LENGTHS)
    console.print(
        f"{time.monotonic() - started:.0f} s. Open {request.out / REPORT_NAME} in a browser.", highlight=False
    )
    return rows
