"""The report of the SpecKV study: the paper's tables, and beside them what its records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from draftgauge.reporting.charts import Axes, Line, bar_chart, line_chart
from draftgauge.reporting.layout import (
    Columns,
    Table,
    decimals,
    ends,
    named,
    render_page,
    report_facts,
    table_of,
    words,
)
from draftgauge.studies.speckv.records import ALL, COMPRESSIONS, GAMMAS
from draftgauge.studies.speckv.study import improvement

Rows = Sequence[Mapping[str, Any]]
PACKAGE = "draftgauge.studies.speckv"
TITLE = "SpecKV, and what its records say"
GAMMA = "\N{GREEK SMALL LETTER GAMMA}"
SHOWN = ("fixed-4", "fixed-best", "task-oracle", "SpecKV-fast")
TARGET = {"compression": ("target", str)}
INTERVAL = {"interval": ("95% interval", str)}
PUBLISHED: dict[str, tuple[str, Columns]] = {
    "policies": (
        "Table 1: expected tokens per step",
        named(str, "policy")
        | TARGET
        | {"expected_tokens": ("recomputed", decimals(2)), "published": ("published", decimals(2))}
        | INTERVAL
        | named(str, "published_interval"),
    ),
    "breakdown": (
        "Table 2: SpecKV-fast against fixed-4, by task",
        TARGET
        | named(str, "task")
        | {"fixed_4": ("fixed-4", decimals(2)), "speckv_fast": ("SpecKV-fast", decimals(2))}
        | {"percent": ("gain, %", decimals(1))},
    ),
    "predictors": (
        "Table 3: predictors of the acceptance rate, and their overhead on the machine of this report",
        named(str, "model")
        | named(decimals(4), "test_correlation", "published_correlation", "test_mse", "published_mse")
        | named(decimals(3), "decision_ms", "published_decision_ms"),
    ),
    "correlations": (
        "Correlation of a step's signals with its acceptance rate",
        named(words, "signal") | named(decimals(3), "correlation") | named(decimals(2), "published"),
    ),
}
COLUMNS: dict[str, Columns] = {
    "tokens_per_step": TARGET | named(str, "gamma") | named(decimals(3), "tokens_per_step") | INTERVAL,
    "tokens_per_second": TARGET | named(str, "gamma") | named(decimals(1), "tokens_per_second") | INTERVAL,
    "gain_split": {
        "basis": ("by", words),
        **TARGET,
        "longer_percent": ("always 8 over 4, %", decimals(2)),
        "choosing_percent": ("choosing over always 8, %", decimals(2)),
        "total_percent": ("together, %", decimals(2)),
    },
    "predicted_and_measured": named(str, "gamma")
    | named(decimals(3), "predicted", "predicted_where_drafted", "measured"),
    "held_out": named(str, "model", "held_out") | named(decimals(3), "correlation", "mse") | INTERVAL,
    "outcomes": named(str, "policy")
    | TARGET
    | named(decimals(3), "tokens_per_step")
    | named(decimals(1), "tokens_per_second", "over_best_fixed_percent"),
    "cost": TARGET
    | named(decimals(2), "draft_ms", "verify_ms", "cost_ratio", "residual_percent", "worst_residual_percent")
    | named(decimals(4), "r_squared"),
}


def render_speckv(rows: Rows) -> str:
    honest = [row for row in rows if row["table"] == "honest"]
    values = {
        "find": lambda finding, **cells: _matching(honest, finding=finding, **cells),
        "improvement": improvement(rows),
        "published": [
            _table(_matching(rows, table=table), columns, caption) for table, (caption, columns) in PUBLISHED.items()
        ],
        "charts": _charts(rows, honest),
        "tables": {name: _table(_matching(honest, finding=name), columns) for name, columns in COLUMNS.items()},
        "facts": report_facts(),
    }
    return render_page("speckv.html.j2", TITLE, values, package=PACKAGE)


def _matching(rows: Rows, **cells: object) -> list[Mapping[str, Any]]:
    return [row for row in rows if all(row.get(key) == value for key, value in cells.items())]


def _table(rows: Rows, columns: Columns, caption: str = "") -> Table:
    shown = []
    for row in rows:
        form = decimals(1 if "tokens_per_second" in row else 3)
        intervals = {f"{prefix}interval": ends(row, prefix, form) for prefix in ("", "published_")}
        shown.append({**row, **intervals})
    return table_of(shown, columns, caption)


def _charts(rows: Rows, honest: Rows) -> dict[str, Markup]:
    policies, choices = (_matching(rows, table=table) for table in ("policies", "choices"))
    tokens = {(row["policy"], row["compression"]): row["expected_tokens"] for row in policies}
    share = {(row["compression"], row["gamma"]): 100 * row["share"] for row in choices}
    score = {(row["model"], row["held_out"]): row["correlation"] for row in _matching(honest, finding="held_out")}
    models = list(dict.fromkeys(model for model, _ in score))
    points = _matching(honest, finding="predicted_and_measured")
    charts = {
        "policies": bar_chart(
            "policies",
            "expected tokens per step",
            COMPRESSIONS,
            {policy: [tokens[policy, name] for name in COMPRESSIONS] for policy in SHOWN},
        ),
        "choices": bar_chart(
            "choices",
            f"{GAMMA} chosen by SpecKV-fast, % of steps",
            [str(gamma) for gamma in GAMMAS],
            {name: [share[name, gamma] for gamma in GAMMAS] for name in (*COMPRESSIONS, ALL)},
        ),
        "held_out": bar_chart(
            "held_out",
            "correlation with what happened",
            models,
            {f"other {kind}": [score[model, kind] for model in models] for kind in ("steps", "prompts")},
        ),
        "predicted_and_measured": line_chart(
            "tokens",
            Axes(f"drafted tokens per step, {GAMMA}", "tokens per step", (0, None), GAMMAS),
            [
                Line(label, GAMMAS, [row[key] for row in points])
                for label, key in (("predicted for all steps, as in the paper", "predicted"), ("measured", "measured"))
            ],
        ),
    }
    lines = []
    for name in COMPRESSIONS:
        own = _matching(honest, finding="tokens_per_second", compression=name)
        lines.append(Line(name, GAMMAS, *([row[key] for row in own] for key in ("tokens_per_second", "low", "high"))))
    frame = Axes(f"drafted tokens per step, {GAMMA}", "measured tokens/s", (0, None), GAMMAS)
    return charts | {"tokens_per_second": line_chart("speed", frame, lines)}
