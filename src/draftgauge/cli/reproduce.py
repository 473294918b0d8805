"""``draftgauge reproduce``: the tables of a paper from its author's records, and what the records say beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import console, friendly_errors, progress, save_json, show_table
from draftgauge.core.errors import DraftgaugeError

app = typer.Typer(help="Reproduce a paper from its published records.", no_args_is_help=True)

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


@app.callback()
def reproduce() -> None:
    """Reproduce a paper from its published records."""


@app.command()
def speckv(
    steps: Annotated[Path, typer.Option(help="The published table of steps, phase2_step_results.csv.")],
    experiments: Annotated[
        Path | None, typer.Option(help="The published table of experiments; without it there is nothing about seconds.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder that receives report.html.")] = None,
    json: o.Json = None,
) -> None:
    """SpecKV (arXiv 2605.02888): its tables to the last published digit, and what its records really say."""
    from draftgauge.api.reproduce import reproduce_speckv
    from draftgauge.studies.speckv.captions import improvement

    with friendly_errors():
        _check_destination(json, (steps, experiments))
        with progress() as advance:
            rows = reproduce_speckv(steps, experiments, out=out, progress=advance)
        show_table(
            "As published: expected tokens a step, predicted by the fitted model", _table(rows, "policies"), POLICIES
        )
        predictors = (_four_digits(row) for row in _table(rows, "predictors"))
        show_table("As published: predictors of acceptance, on 20% of the steps", predictors, PREDICTORS)
        console.print(f"SpecKV-fast over fixed-4: {improvement(rows)}\n", highlight=False)
        show_table("What the records say: where the gain over 4 comes from", _finding(rows, "gain_split"), SPLIT)
        if experiments is not None:
            show_table("What the records say: speed", _finding(rows, "tokens_per_second"), SPEED)
        save_json(json, rows)
        if out is not None:
            console.print(f"wrote {out / 'report.html'}", highlight=False)


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


def _check_destination(json: Path | None, inputs: tuple[Path | None, ...]) -> None:
    """Refuse a JSON file that could not be written, or that is one of the inputs, before the work rather than after it."""
    if json is None:
        return
    if json.is_dir() or any(parent.is_file() for parent in json.parents):
        raise DraftgaugeError(f"--json {json}: name a file in a folder, not a folder or a place below a file")
    if any(path is not None and path.exists() and json.exists() and json.samefile(path) for path in inputs):
        raise DraftgaugeError(f"--json {json} is one of the tables to read; choose another file")
