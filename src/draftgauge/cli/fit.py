"""``draftgauge fit``: learn a policy from a trace."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import FitRequest
from draftgauge.cli.console import console, show_table

COLUMNS = {
    "compression": "target",
    "trained_prompts": "fitted on prompts",
    "prompts": "judged on prompts",
    "tokens_per_step": "tokens/step",
    "gain": "gain over best fixed",
    "gain_low": "95% from",
    "gain_high": "to",
    "captured": "captured",
}


def fit(request: FitRequest) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.fit import fit as run

    rows = run(request)
    show_table(f"{request.policy} on the validation prompts", rows, COLUMNS)
    said = f"wrote {request.out}\nNext: draftgauge replay {request.folder} --policy {request.out}"
    console.print(said, highlight=False)
    return rows
