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

OVER_ONE_SOURCE = {
    "best_rival": "better source alone",
    "gain_over_rival": "gain over it",
    "gain_over_rival_low": "95% from",
    "gain_over_rival_high": "to",
}


def fit(request: FitRequest) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.fit import fit as run

    rows = run(request)
    compared = any(row.get("best_rival") is not None for row in rows)
    if any("prompts" in row for row in rows):
        show_table(f"{request.policy} on the validation prompts", rows, COLUMNS | (OVER_ONE_SOURCE if compared else {}))
    else:
        console.print(
            f"fitted {request.policy} on {rows[0]['trained_prompts']} prompts; what it gains is not shown, as the run "
            "has too few validation prompts: replay it on test prompts",
            highlight=False,
        )
    said = f"wrote {request.out}\nNext: draftgauge replay {request.folder} --policy {request.out}"
    console.print(said, highlight=False)
    return rows
