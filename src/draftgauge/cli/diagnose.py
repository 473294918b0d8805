"""``draftgauge diagnose``: what limits trained drafters."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import DiagnoseRequest
from draftgauge.cli.console import progress, show_table

DRAFTER = {"design": "design", "layers": "layers", "injection": "injection", "seeds": "seeds"}
QUERY = DRAFTER | {
    "depth": "depth",
    "layer": "layer",
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
GRADIENTS = DRAFTER | {
    "group": "group",
    "depth": "depth",
    "gradient_norm": "gradient norm",
    "gradient_to_weight": "over weights",
    "gradient_share": "positions reached",
}
GATE = DRAFTER | {"depth": "depth", "gate_mean": "mean", "gate_open": "share open"}


def diagnose(request: DiagnoseRequest) -> list[dict[str, Any]]:
    from draftgauge.api.diagnose import diagnose as run

    with progress() as advance:
        rows = run(request, progress=advance)
    final = [row for row in rows if "step" not in row]
    _show("Queries beside the target's own", [row for row in final if "query_kl" in row], QUERY)
    _show("Agreement with the target's query in place", [row for row in final if "control" in row], CONTROLS)
    last = max((row["depth"] for row in final if "gradient_share" in row), default=0)
    ends = [row for row in final if "gradient_share" in row and row["depth"] in (0, last)]
    _show("Gradients at the first and the last depth", ends, GRADIENTS)
    _show("Openness of the gate", [row for row in final if "gate_mean" in row], GATE)
    return rows


def _show(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    if rows:
        show_table(title, rows, columns)
