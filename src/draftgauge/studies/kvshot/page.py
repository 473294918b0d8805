"""The report of the KVShot study as one HTML file, made of its rows alone; no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import timestamp
from draftgauge.reporting.charts import Axes, Line, interval_chart, line_chart
from draftgauge.reporting.layout import (
    Columns,
    Series,
    Table,
    decimals,
    ends,
    facts_of,
    fixed,
    named,
    number,
    p_text,
    ratio,
    render_page,
    series,
    table_of,
)
from draftgauge.studies.kvshot.cells import EQUAL_WIDTH, RECIPES, Variant
from draftgauge.studies.kvshot.presets import ROPE

Row = Mapping[str, Any]
Chart = tuple[str, Markup]
PACKAGE = "draftgauge.studies.kvshot"
TITLE = "Hidden states or the KV cache"
LABELS = ("design", "layers", "injection", "init", "capacity", "remedy")
# A design keeps its colour in every chart.
DESIGN_STYLES = {
    "hidden": Series("blue", (), "o"),
    "kv": Series("vermillion", (5, 1.5), "s"),
    "hybrid": Series("green", (), "^"),
    "cross": Series("purple", (5, 1.5, 1.2, 1.5), "D"),
    "control": Series("muted", (1.2, 1.8), "v"),
}
DRAFTER = {"drafter": ("drafter", str), "capacity": ("matched by", str)}
PARAMETERS = DRAFTER | named(decimals(0), "parameters", "intermediate_size")
SPEED = (
    named(decimals(2), "draft_ms") | named(decimals(1), "tokens_per_second") | {"ratio_to_plain": ("to plain", ratio)}
)
CONTROLS = (
    DRAFTER
    | named(str, "depth", "control")
    | named(decimals(3), "agreement_own_query", "agreement", "difference")
    | named(str, "interval")
)
GRADIENTS = (
    DRAFTER
    | named(str, "group", "depth")
    | named(decimals(3), "gradient_norm", "gradient_to_weight", "gradient_share", "draft_share")
)
RANKS = DRAFTER | named(str, "group") | named(decimals(1), "effective_rank", "full_rank")
TUNING = DRAFTER | named(number, "learning_rate", "warmup", "gate_start", "validation_kl")


@dataclass(frozen=True)
class Drafter(Variant):
    """All rows of one drafter, over its seeds."""

    rows: Sequence[Row] = ()

    @property
    def label(self) -> str:
        parts = [self.design]
        parts += [self.injection] if self.design == "kv" and self.injection not in ("", ROPE) else []
        parts += [f"{self.layers} layers"] if self.layers > 1 else []
        parts += ["warm start"] if self.init == "warm" else []
        parts += [self.remedy.replace("-", " ")] if self.remedy else []
        return ", ".join(parts)

    @property
    def head(self) -> dict[str, Any]:
        return {"drafter": self.label, "capacity": self.capacity}

    @property
    def plain(self) -> bool:
        return self.layers == 1 and self.init == "random" and not self.remedy and self.injection in ("", ROPE)

    def having(self, *keys: str) -> list[Row]:
        return [row for row in self.rows if all(key in row for key in keys)]

    @property
    def depths(self) -> list[Row]:
        return sorted(self.having("alpha"), key=lambda row: int(row["depth"]))

    def measure(self, name: str, task: str | None = None) -> Row:
        """A pooled measure, of one task where it is given; empty where it was not taken."""
        found = (
            row
            for row in self.having("measure")
            if row["measure"] == name and row.get("task") == task and "distance" not in row
        )
        return next(found, {})

    def estimate(self, name: str, digits: int = 2, task: str | None = None) -> str | None:
        row = self.measure(name, task)
        if row.get("estimate") is None:
            return None
        interval = ends(row, "", decimals(digits))
        return fixed(row["estimate"], digits) + (f" ({interval})" if interval else "")

    def median(self, key: str) -> float | None:
        values = [float(row[key]) for row in self.having("seed", key) if row[key] is not None]
        return statistics.median(values) if values else None

    def query_error(self) -> list[float]:
        rows = self.having("query_kl")
        depths = sorted({row["depth"] for row in rows})
        return [statistics.mean(row["query_kl"] for row in rows if row["depth"] == depth) for depth in depths]

    def gate(self) -> list[Row]:
        return sorted(self.having("step", "gate_mean"), key=lambda row: float(row["step"]))


def render_kvshot(rows: Sequence[Row], failures: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """The page of a study's rows, as ``--json`` writes them: of cells that failed, and why, and of how it was made."""
    drafters = [one for one in _grouped(rows) if one.having("seed")]
    if not drafters:
        raise DraftgaugeError("there is nothing to report: no run of the study is among these rows")
    matched = [one for one in drafters if one.capacity != EQUAL_WIDTH]
    main = matched if any(one.design != "control" for one in matched) else drafters
    values = {
        "seeds": sorted({len(one.having("seed")) for one in drafters}),
        "failures": failures,
        "predictions": [row | {"evidence": evidence(row)} for row in map(dict, rows) if "prediction" in row],
        "comparisons": [*comparisons(drafters), *learning_charts(rows)],
        "mat": interval_chart(
            "mat",
            "MAT, tokens per step",
            [_named_estimate(one) for one in drafters],
            [DESIGN_STYLES[one.design] for one in drafters],
        ),
        "results": results_table(drafters),
        "tasks": tasks_table(drafters),
        "limits": limit_charts([one for one in main if one.plain or one.remedy in RECIPES]),
        "controls": _rows_table(drafters, lambda one: one.having("control"), CONTROLS),
        "gradients": _rows_table(drafters, lambda one: one.having("group", "gradient_share"), GRADIENTS),
        "ranks": _rows_table(drafters, lambda one: one.having("effective_rank"), RANKS),
        "capacity": _rows_table(drafters, lambda one: one.having("seed")[:1], PARAMETERS),
        "tuning": _rows_table(_grouped(rows), lambda one: one.having("trial"), TUNING),
        "speed": table_of([one.head | {key: one.median(key) for key in SPEED} for one in drafters], DRAFTER | SPEED),
        "facts": facts_of({**facts, "report made": timestamp()}),
    }
    return render_page("kvshot.html.j2", TITLE, values, package=PACKAGE)


def _grouped(rows: Sequence[Row]) -> list[Drafter]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if "capacity" in row:
            groups.setdefault(tuple(row.get(key) or "" for key in LABELS), []).append(row)
    return [Drafter(**dict(zip(LABELS, labels, strict=True)), rows=own) for labels, own in groups.items()]


def evidence(row: Row) -> str:
    """The numbers of a verdict, or why there are none, or why they decide nothing."""
    reason = row.get("reason") or ""
    if row.get("p_value") is None or not math.isfinite(row["p_value"]):
        return reason
    difference = f"difference {fixed(row['difference'], 3)} ({ends(row, 'difference_', decimals(3))})"
    figures = f"{difference}, corrected p {p_text(row['p_value'])}, seeds alone {p_text(row['p_seeds'])}"
    return f"{reason}; {figures}" if reason else figures


def comparisons(drafters: Sequence[Drafter]) -> list[Chart]:
    """Charts of acceptance and of agreement by depth; those of fewer than two lines are left out."""
    wide = [one for one in drafters if one.capacity == EQUAL_WIDTH]
    matched = [one for one in drafters if one.capacity != EQUAL_WIDTH]
    kv = [one for one in drafters if one.design == "kv" and not one.remedy]
    rope = [one for one in kv if one.injection == ROPE]
    chosen = {
        "Designs, at equal parameters": [one for one in matched if one.plain],
        "Designs, at equal width": [one for one in wide if one.plain],
        "Token by token and block-wise": [one for one in matched if one.plain or one.remedy in RECIPES]
        if any(one.remedy in RECIPES for one in matched)
        else [],
        "Ways of injecting the KV cache": [one for one in kv if one in matched and one.layers == 1],
        "Layers of the KV drafter, at equal parameters": [one for one in rope if one in matched],
        "Layers of the KV drafter, at equal width": [one for one in rope if one in wide],
        "Random and warm start, at equal width": [one for one in wide if one.design != "kv" and not one.remedy],
    }
    charts = []
    for title, lines in chosen.items():
        if len(lines) < 2:
            continue
        styles = _styles(lines)
        for name, *keys, ylabel in (
            ("accepted", "alpha", "alpha_low", "alpha_high", "accepted, given all before, %"),
            ("agreement", "agreement", "agreement_low", "agreement_high", "agreement, all positions, %"),
        ):
            drawn = [
                Line(one.label, [row["depth"] for row in one.depths], *_percents(one.depths, keys), style=style)
                for one, style in zip(lines, styles, strict=True)
            ]
            axes = Axes("depth of the draft step, k", ylabel)
            charts.append((f"{title}: {name}", line_chart(f"{title} {name}", axes, drawn)))
    return charts


def learning_charts(rows: Sequence[Row]) -> list[Chart]:
    """Tokens a step of both recipes over their training, by tokens seen and by seconds, where the study kept them."""
    points = [row for row in rows if "curve" in row]
    designs = dict.fromkeys((row["curve"], row["design"]) for row in points)
    charts = []
    for key, xlabel in (("tokens_seen", "answer positions trained on"), ("train_seconds", "seconds of training")):
        lines = []
        for place, (recipe, design) in enumerate(designs):
            own = [row for row in points if (row["curve"], row["design"]) == (recipe, design)]
            values = [[row[f"tokens_per_step{end}"] for row in own] for end in ("", "_low", "_high")]
            lines.append(Line(f"{design}, {recipe}", [row[key] for row in own], *values, style=series(place)))
        if lines:
            axes = Axes(xlabel, "tokens a step, all positions")
            charts.append((f"Learning curve by {xlabel}", line_chart(f"learning {key}", axes, lines)))
    return charts


def results_table(drafters: Sequence[Drafter]) -> Table:
    """The paper's step-wise table, with intervals."""
    last = max(len(one.depths) for one in drafters)
    shown = [depth for depth in (1, 4, 7) if depth <= last]
    measures = {
        "retention": "retention",
        "mat": "MAT, all positions",
        "mat_minus_control": "less control, paired",
        "mat_minus_plain": "less without remedy, paired",
        "live_mat": "MAT, live",
        "tree_mat": "MAT, trees",
    }
    lines = [
        one.head
        | {"seeds": len(one.having("seed"))}
        | {f"alpha_{row['depth']}": row["alpha"] for row in one.depths if row["depth"] in shown}
        | {name: one.estimate(name, 3 if "minus" in name else 2) for name in measures}
        for one in drafters
    ]
    columns = DRAFTER | named(str, "seeds") | named(decimals(3), *(f"alpha_{depth}" for depth in shown))
    return table_of(lines, {**columns, **{name: (heading, str) for name, heading in measures.items()}})


def tasks_table(drafters: Sequence[Drafter]) -> Table:
    tasks = list(dict.fromkeys(row["task"] for one in drafters for row in one.having("measure", "task")))
    lines = [one.head | {task: one.estimate("mat", task=task) for task in tasks} for one in drafters]
    return table_of(lines, DRAFTER | named(str, *tasks))


def limit_charts(drafters: Sequence[Drafter]) -> list[Chart]:
    """Query error by depth and the gate over training, where the study measured them."""
    queries, gates = [], []
    for one, style in zip(drafters, _styles(drafters), strict=True):
        errors, gate = one.query_error(), one.gate()
        if errors:
            queries.append(Line(one.label, range(1, 1 + len(errors)), errors, style=style))
        if gate:
            steps, openness = [row["step"] for row in gate], [row["gate_mean"] for row in gate]
            gates.append(Line(one.label, steps, openness, style=style))
    query_axes = Axes("depth of the draft step, k", "KL to the target's query, nats", (0, None))
    charts = [("Query estimation error by depth", line_chart("query", query_axes, queries))] if queries else []
    gate_axes = Axes("step of training", "mean openness of the gate", (0, 1))
    return charts + ([("The gate over training", line_chart("gate", gate_axes, gates))] if gates else [])


def _styles(drafters: Sequence[Drafter]) -> list[Series]:
    """Those of designs, where each is of another."""
    distinct = len({one.design for one in drafters}) == len(drafters)
    return [DESIGN_STYLES[one.design] if distinct else series(place) for place, one in enumerate(drafters)]


def _rows_table(drafters: Sequence[Drafter], rows_of: Callable[[Drafter], Sequence[Row]], columns: Columns) -> Table:
    """Some rows of every drafter, a line each; what the tuning chose is bold."""
    return table_of(
        [
            {
                **row,
                **one.head,
                "interval": ends(row, "difference_", decimals(3)),
                "kind": "best" if row.get("chosen") else "",
            }
            for one in drafters
            for row in rows_of(one)
        ],
        columns,
    )


def _named_estimate(one: Drafter) -> tuple[str, float, float, float]:
    row = one.measure("mat")
    label = one.label + (", equal width" if one.capacity == EQUAL_WIDTH else "")
    value, low, high = (math.nan if row.get(key) is None else row[key] for key in ("estimate", "low", "high"))
    return label, value, low, high


def _percents(rows: Sequence[Row], keys: Sequence[str]) -> list[list[float]]:
    return [[math.nan if row[key] is None else 100 * row[key] for row in rows] for key in keys]
