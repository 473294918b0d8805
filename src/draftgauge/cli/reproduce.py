"""``draftgauge reproduce``: papers from the records that their authors published."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import ReproduceSpeckvRequest
from draftgauge.cli.console import console, progress, show_table

POLICIES = {
    "policy": "policy",
    "compression": "target",
    "expected_tokens": "expected tokens/step",
    "published": "published",
}
PREDICTORS = {
    "model": "model",
    "correlation": "test correlation",
    "published_correlation": "published",
    "mse": "test MSE",
    "decision_ms": "ms a decision",
}
SPLIT = {
    "basis": "measured by",
    "compression": "target",
    "longer_percent": "drafting 8, %",
    "choosing_percent": "choosing, %",
}
SPEED = {
    "compression": "target",
    "gamma": "gamma",
    "tokens_per_second": "measured tokens/s",
    "low": "95% from",
    "high": "to",
}


def speckv(request: ReproduceSpeckvRequest) -> list[dict[str, Any]]:
    from draftgauge.api.reproduce import REPORT_NAME, reproduce_speckv
    from draftgauge.studies.speckv.study import improvement

    with progress() as advance:
        rows = reproduce_speckv(request, progress=advance)
    policies = _table(rows, "policies")
    show_table("As published: expected tokens a step, predicted by the fitted model", policies, POLICIES)
    predictors = (_four_digits(row) for row in _table(rows, "predictors"))
    show_table("As published: predictors of acceptance, on 20% of the steps", predictors, PREDICTORS)
    console.print(f"SpecKV-fast over fixed-4: {improvement(rows)}\n", highlight=False)
    show_table("What the records say: where the gain over 4 comes from", _finding(rows, "gain_split"), SPLIT)
    if request.experiments is not None:
        show_table("What the records say: speed", _finding(rows, "tokens_per_second"), SPEED)
    if request.out is not None:
        console.print(f"wrote {request.out / REPORT_NAME}", highlight=False)
    return rows


def _table(rows: list[dict[str, Any]], name: str) -> Any:
    return (row for row in rows if row["table"] == name)


def _four_digits(row: dict[str, Any]) -> dict[str, Any]:
    """A predictor's scores with the digits that were published; the console shows three."""
    scores = {
        "correlation": row["test_correlation"],
        "mse": row["test_mse"],
        "published_correlation": row.get("published_correlation"),
    }
    return row | {key: "" if value is None else f"{value:.4f}" for key, value in scores.items()}


def _finding(rows: list[dict[str, Any]], name: str) -> Any:
    return (row for row in _table(rows, "honest") if row["finding"] == name)
