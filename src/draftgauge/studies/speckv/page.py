"""The report of the SpecKV study: the paper's tables and figures, and beside them what its records say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from draftgauge.core.files import atomic_write_text
from draftgauge.reporting.facts import report_facts
from draftgauge.reporting.layout import render_page
from draftgauge.reporting.style import MISSING, percent
from draftgauge.reporting.table import Columns, Format, Table, decimals, table_of, words
from draftgauge.studies.speckv import figures
from draftgauge.studies.speckv.captions import caption_figures, gain, improvement
from draftgauge.studies.speckv.figures import Rows, findings, select

PACKAGE = "draftgauge.studies.speckv"
TITLE = "SpecKV, and what its records say"


@dataclass(frozen=True)
class Section:
    """One finding: a title, tables and charts; its identifier names its caption."""

    identifier: str
    title: str
    tables: tuple[Table, ...] = ()
    charts: tuple[tuple[str, Markup], ...] = ()


def write_speckv_report(rows: Rows, out: Path, command: str | None = None) -> Path:
    """Write the report of :func:`draftgauge.studies.speckv.run_study`'s rows.

    Args:
        rows: all of them.
        out: the HTML file; its folder exists.
        command: that asked for the report; the running one if None.

    Raises:
        DraftgaugeError: if the file cannot be written.
    """
    atomic_write_text(out, render_speckv(rows, command))
    return out


def render_speckv(rows: Rows, command: str | None = None) -> str:
    """The page as text."""
    values = {
        "captions": caption_figures(rows),
        "improvement": improvement(rows),
        "tables": _published_tables(rows),
        "figures": _published_figures(rows),
        "sections": _sections(rows),
        "provenance": report_facts(command),
    }
    functions = {"gain": gain, "share": percent}
    return render_page("speckv.html.j2", TITLE, values, package=PACKAGE, functions=functions)


def _published_tables(rows: Rows) -> tuple[Table, ...]:
    policies = [row | _ends(row, 3) for row in map(dict, select(rows, "policies"))]
    return (
        table_of(
            policies,
            {
                "policy": ("policy", str),
                "compression": ("target", str),
                "expected_tokens": ("recomputed", decimals(2)),
                "published": ("published", decimals(2)),
                "interval": ("95% interval", str),
                "published_interval": ("published", str),
            },
            "Table 1: expected tokens a step",
        ),
        table_of(
            select(rows, "breakdown"),
            {
                "compression": ("target", str),
                "task": ("task", str),
                "fixed_4": ("fixed-4", decimals(2)),
                "speckv_fast": ("SpecKV-fast", decimals(2)),
                "percent": ("gain, %", decimals(1)),
            },
            "Table 2: SpecKV-fast against fixed-4, by task",
        ),
        table_of(
            select(rows, "predictors"),
            {
                "model": ("model", str),
                "test_correlation": ("test correlation", decimals(4)),
                "published_correlation": ("published", decimals(4)),
                "test_mse": ("test MSE", decimals(4)),
                "published_mse": ("published", decimals(4)),
                "decision_ms": ("ms a decision", decimals(3)),
                "published_decision_ms": ("published", decimals(3)),
            },
            "Table 3: predictors of the acceptance rate, and their overhead on the machine of this report",
        ),
        table_of(
            select(rows, "correlations"),
            {
                "signal": ("signal", words),
                "correlation": ("recomputed", decimals(3)),
                "published": ("published, about", decimals(2)),
            },
            "Correlation of a step's signals with its acceptance rate",
        ),
    )


def _published_figures(rows: Rows) -> tuple[tuple[str, Markup], ...]:
    return (
        ("Policies by compression", figures.policies_figure(rows)),
        ("Policies with intervals", figures.intervals_figure(rows)),
        ("SpecKV-fast over fixed-4, by task", figures.improvement_figure(rows)),
        ("Accuracy against overhead", figures.overhead_figure(rows)),
        ("What SpecKV-fast chooses", figures.choices_figure(rows)),
        ("Importance of features", figures.importance_figure(rows)),
    )


def _sections(rows: Rows) -> tuple[Section, ...]:
    timed = bool(findings(rows, "cost"))
    charts = {
        "predicted_and_measured": (("Predicted and measured", figures.tokens_figure(rows)),),
        "held_out": (("Steps or prompts held out", figures.held_out_figure(rows)),),
        "tokens_per_second": (("Measured speed", figures.speed_figure(rows)),) if timed else (),
    }
    return tuple(
        Section(name, title, _finding_tables(rows, name), charts.get(name, ()))
        for name, title in TITLES.items()
        if findings(rows, name)
    )


TITLES = {
    "tokens_per_step": "Tokens a step, measured",
    "tokens_per_second": "Tokens a second, measured",
    "gain_split": "Longer drafts, or choosing?",
    "predicted_and_measured": "Prediction and measurement",
    "held_out": "Prompts held out instead of steps",
    "outcomes": "Policies scored on outcomes",
    "leave_one_task_out": "A task never seen",
    "leave_one_compression_out": "A compression never seen",
    "cost": "What a step costs",
}


# The columns of each finding: key of the row -> heading and format. "interval" is made of low and high.
_SCORES: dict[str, tuple[str, Format]] = {"correlation": ("correlation", decimals(3)), "mse": ("MSE", decimals(4))}
_LEFT_OUT: dict[str, tuple[str, Format]] = {
    "left_out": ("left out", str),
    "model": ("model", str),
    "prompts": ("its prompts", str),
} | _SCORES
COLUMNS: dict[str, Columns] = {
    "tokens_per_step": {
        "compression": ("target", str),
        "gamma": (figures.GAMMA, decimals(0)),
        "tokens_per_step": ("tokens/step", decimals(3)),
        "interval": ("95% interval", str),
    },
    "tokens_per_second": {
        "compression": ("target", str),
        "gamma": (figures.GAMMA, decimals(0)),
        "tokens_per_second": ("tokens/s", decimals(1)),
        "interval": ("95% interval", str),
    },
    "gain_split": {
        "basis": ("by", words),
        "compression": ("target", str),
        "longer_percent": ("always 8 over 4, %", decimals(2)),
        "choosing_percent": ("choosing over always 8, %", decimals(2)),
        "total_percent": ("together, %", decimals(2)),
    },
    "predicted_and_measured": {
        "gamma": (figures.GAMMA, decimals(0)),
        "predicted": ("predicted, all steps", decimals(3)),
        "predicted_where_drafted": ("predicted, steps at this length", decimals(3)),
        "measured": ("measured", decimals(3)),
    },
    "held_out": {"model": ("model", str), "held_out": ("held out", str)}
    | _SCORES
    | {"interval": ("95% interval", str)},
    "outcomes": {
        "policy": ("policy", str),
        "compression": ("target", str),
        "tokens_per_step": ("tokens/step", decimals(3)),
        "tokens_per_second": ("tokens/s at fitted costs", decimals(1)),
        "over_best_fixed_percent": ("over best fixed, %", decimals(1)),
    },
    "leave_one_task_out": _LEFT_OUT | {"mse_of_mean": ("MSE of the mean", decimals(4))},
    "leave_one_compression_out": _LEFT_OUT | {"mse_of_mean": ("MSE of the mean", decimals(4))},
    "cost": {
        "compression": ("target", str),
        "draft_ms": ("t_draft, ms", decimals(2)),
        "verify_ms": ("t_verify, ms", decimals(2)),
        "cost_ratio": ("ratio", decimals(3)),
        "residual_percent": ("residual, %", decimals(2)),
        "worst_residual_percent": ("worst, %", decimals(2)),
        "r_squared": ("R\N{SUPERSCRIPT TWO}", decimals(4)),
    },
}


def _finding_tables(rows: Rows, name: str) -> tuple[Table, ...]:
    digits = {"tokens_per_second": 1}.get(name, 3)
    return (table_of([row | _ends(row, digits) for row in map(dict, findings(rows, name))], COLUMNS[name]),)


def _ends(row: Mapping[str, Any], digits: int) -> dict[str, str]:
    """The intervals of a row as text."""
    return {
        f"{prefix}interval": f"{row[f'{prefix}low']:.{digits}f} {MISSING} {row[f'{prefix}high']:.{digits}f}"
        for prefix in ("", "published_")
        if f"{prefix}low" in row
    }
