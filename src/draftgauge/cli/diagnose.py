"""``draftgauge diagnose``: what limits trained drafters."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import named, progress, show_table
from draftgauge.requests import DiagnoseRequest

DRAFTER = named("design", "recipe", "layers", "injection", "seeds")
QUERY = {
    **DRAFTER,
    **named("depth", "layer"),
    "target_layer": "of target layer",
    "query_kl": "KL, nats [95%]",
    "uniform_kl": "KL of uniform attention",
}
CONTROLS = DRAFTER | {
    "depth": "depth",
    "control": "with",
    "agreement": "agreement",
    "agreement_own_query": "with its own",
    "difference": "difference [95%]",
}
GRADIENTS = {
    **DRAFTER,
    **named("group", "depth", "gradient_norm"),
    "gradient_to_weight": "over weights",
    "gradient_share": "positions reached",
    "draft_share": "of the draft",
}
RANKS = DRAFTER | {"group": "group", "effective_rank": "effective rank", "full_rank": "of"}
GATE = DRAFTER | {"depth": "depth", "gate_mean": "mean", "gate_open": "share open"}
TABLES = (
    ("Queries beside the target's own", "query_kl", QUERY),
    ("Agreement with the target's query in place", "control", CONTROLS),
    ("Gradients at the first and the last depth", "gradient_share", GRADIENTS),
    ("Effective rank of the drafter's own projections", "effective_rank", RANKS),
    ("Openness of the gate", "gate_mean", GATE),
)


def diagnose(request: DiagnoseRequest) -> list[dict[str, Any]]:
    from draftgauge.api.diagnose import diagnose as run

    with progress() as advance:
        rows = run(request, progress=advance)
    for title, measure, columns in TABLES:
        if shown := [row for row in rows if measure in row and "step" not in row]:
            show_table(title, shown, columns)
    return rows
