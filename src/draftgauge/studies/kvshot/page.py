"""The report of the KVShot study as one HTML file: predictions, acceptance, capacity and latency; no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from markupsafe import Markup

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text
from draftgauge.core.provenance import timestamp
from draftgauge.reporting.layout import render_page
from draftgauge.reporting.style import Series, fixed, number, ratio
from draftgauge.reporting.table import Table
from draftgauge.studies.kvshot import figures
from draftgauge.studies.kvshot.cells import EQUAL_WIDTH
from draftgauge.studies.kvshot.presets import ROPE
from draftgauge.studies.kvshot.views import (
    Estimate,
    VariantView,
    label_of,
    prediction_views,
    variant_views,
)

PACKAGE = "draftgauge.studies.kvshot"
TITLE = "Hidden states or the KV cache"


@dataclass(frozen=True)
class Comparison:
    """One panel of acceptance by depth: what it compares, its lines and how each is drawn."""

    title: str
    lines: tuple[tuple[str, Series], ...]
    chart: Markup
    agreement: Markup


def write_kvshot_report(
    rows: Sequence[Mapping[str, Any]], out: Path, failures: Mapping[str, str], facts: Mapping[str, Any]
) -> Path:
    """Write the report of a study.

    Args:
        rows: of the study, as ``draftgauge study kvshot --json`` writes them.
        out: the HTML file; its folder must exist.
        failures: cells that failed, and why.
        facts: labelled, about how the study was made.

    Raises:
        DraftgaugeError: if there is no run among the rows, or the file cannot be written.
    """
    atomic_write_text(out, render_kvshot(rows, failures, facts))
    return out


def render_kvshot(rows: Sequence[Mapping[str, Any]], failures: Mapping[str, str], facts: Mapping[str, Any]) -> str:
    """The page as text."""
    views = variant_views(rows)
    if not views:
        raise DraftgaugeError("there is nothing to report: no run of the study is among these rows")
    matched = [view for view in views if view.capacity != EQUAL_WIDTH]
    main = matched if any(view.design != "none" for view in matched) else views
    plain = _designs(main)
    values = {
        "predictions": prediction_views(rows),
        "comparisons": comparisons(views),
        "results": results_table(views),
        "capacity": capacity_table(views),
        "agreement": agreement_table(views),
        "tasks": tasks_table(views),
        "speed": speed_table(views),
        "designs": [(design, figures.DESIGN_STYLES[design]) for design in dict.fromkeys(view.design for view in main)],
        "mat": figures.mat_panel(views),
        "retention": figures.retention_panel(main),
        "latency": figures.latency_panel(main) if any(view.draft_ms == view.draft_ms for view in main) else None,
        "distances": [
            ("First drafted token", figures.distance_panel(plain, "alpha_first", "accepted at depth 0, %")),
            ("Deep in the draft", figures.distance_panel(plain, "alpha_deep", "accepted at depths 4 to 6, %")),
        ],
        "limits": limit_panels(plain),
        "controls": controls_table(views),
        "shares": gradients_table(plain),
        "remedies": remedies_table(views),
        "tuning": tuning_table(rows),
        "ablation": ablation_table(rows),
        "seeds": sorted({view.seeds for view in views}),
        "failures": failures,
        "facts": [
            (key.replace("_", " "), _plain(value))
            for key, value in {**facts, "report made": timestamp()}.items()
            if value is not None
        ],
    }
    return render_page("kvshot.html.j2", TITLE, values, package=PACKAGE)


def comparisons(views: Sequence[VariantView]) -> list[Comparison]:
    """Panels that each ask one question; those with fewer than two lines are left out."""
    wide = [view for view in views if view.capacity == EQUAL_WIDTH]
    matched = [view for view in views if view.capacity != EQUAL_WIDTH]
    chosen: list[tuple[str, str, list[VariantView]]] = [
        ("designs", "Designs, at equal parameters", _designs(matched)),
        ("designs-wide", "Designs, at equal width", _designs(wide)),
        (
            "injections",
            "Ways of injecting the KV cache",
            _where(matched, lambda v: v.design == "kv" and v.layers == 1 and not v.remedy),
        ),
        ("depths", "Layers of the KV drafter, at equal parameters", _depths(matched)),
        ("depths-wide", "Layers of the KV drafter, at equal width", _depths(wide)),
        (
            "starts",
            "Random and warm start, at equal width",
            _where(wide, lambda v: v.design in ("hidden", "hybrid", "cross")),
        ),
    ]
    compared = [view for _, _, lines in chosen if len(lines) > 1 for view in lines]
    alphas, agreements = (figures.depth_range(compared, figure) for figure in ("alpha", "agreement"))
    return [
        Comparison(
            title,
            tuple((v.label, s) for v, s in zip(lines, figures.styles(lines), strict=True)),
            figures.alpha_panel(lines, name, alphas),
            figures.agreement_panel(lines, name, agreements),
        )
        for name, title, lines in chosen
        if len(lines) > 1
    ]


def results_table(views: Sequence[VariantView]) -> Table:
    """The paper's step-wise table, with intervals."""
    last = max(len(view.alpha) for view in views) - 1
    depths = [depth for depth in (0, 3, 6) if depth <= last]
    headings = (
        "drafter",
        "matched by",
        "seeds",
        *(f"alpha {d}" for d in depths),
        "retention",
        "MAT, all positions",
        "less none, paired",
        "MAT, live",
        "MAT, trees",
    )
    lines = []
    for view in views:
        alphas = [fixed(view.alpha[depth].value, 3) if depth < len(view.alpha) else "" for depth in depths]
        over_none = view.measures.get("mat_minus_none")
        measures = [
            *(view.measure(name).text() for name in ("retention", "mat")),
            over_none.text(3) if over_none else "",
            *(view.measure(name).text() for name in ("live_mat", "tree_mat")),
        ]
        lines.append((view.label, view.capacity, str(view.seeds), *alphas, *measures))
    return _table(headings, lines)


def capacity_table(views: Sequence[VariantView]) -> Table:
    """Trainable parameters and the widths that make them agree."""
    matched = [view.parameters for view in views if view.capacity != EQUAL_WIDTH]
    base = max(matched, default=max(view.parameters for view in views))
    lines = (
        (v.label, v.capacity, f"{v.parameters:,}", f"{100 * (v.parameters / base - 1):+.2f}%", f"{v.width:,}")
        for v in views
    )
    return _table(
        ("drafter", "matched by", "trainable parameters", "to the largest matched", "width of the MLP"), lines
    )


def agreement_table(views: Sequence[VariantView]) -> Table:
    """Whether drafting in real decoding finds what the teacher-forced measure says."""
    lines = (
        (v.label, v.capacity, v.measure("live_mat").text(3), v.measure("live_minus_forced").text(3), str(v.mismatched))
        for v in views
    )
    return _table(
        ("drafter", "matched by", "live MAT", "live minus teacher-forced", "outputs unlike plain decoding"), lines
    )


ATTENTION_GROUPS = (
    "self_attention.keys",
    "self_attention.values",
    "chain_attention.keys",
    "chain_attention.values",
    "injection.keys",
    "injection.values",
)


def limit_panels(views: Sequence[VariantView]) -> list[tuple[str, Markup]]:
    """Query error, gradient share and gate, those that the study measured."""
    panels = []
    reading = [view for view in views if view.limits.query_kl]
    probed = [view for view in views if view.limits.gradients]
    gated = [view for view in views if view.limits.gate]
    if reading:
        panels.append(("Query estimation error by depth", figures.query_panel(reading)))
    if probed:
        groups = [kind for kind in ATTENTION_GROUPS if any(row["group"].endswith(kind) for row in _groups(probed))]
        panels.append(("Where the loss reaches", figures.share_panel(probed, groups)))
    if gated:
        panels.append(("The gate over training", figures.gate_panel(gated)))
    return panels


def controls_table(views: Sequence[VariantView]) -> Table:
    """What another query in place of the drafter's does to agreement."""
    lines = tuple(
        (
            view.label,
            view.capacity,
            str(row["depth"]),
            row["control"],
            fixed(row["agreement_own_query"], 3),
            fixed(row["agreement"], 3),
            Estimate(row["difference"], row["low"], row["high"]).text(3),
        )
        for view in views
        for row in view.limits.controls
    )
    return _table(("drafter", "matched by", "depth", "with", "own query", "instead", "difference"), lines)


def gradients_table(views: Sequence[VariantView]) -> Table:
    """Gradients of the loss of the last depth, by parameter group."""
    lines = tuple(
        (
            view.label,
            row["group"],
            number(row["gradient_norm"]),
            "" if row["gradient_to_weight"] is None else number(row["gradient_to_weight"]),
            fixed(row["gradient_share"], 3),
            f"{row['effective_rank']:.1f} of {row['samples']:.0f}",
        )
        for view in views
        for row in view.limits.gradients
    )
    return _table(("drafter", "group", "norm", "over weights", "positions reached", "effective rank"), lines)


def remedies_table(views: Sequence[VariantView]) -> Table:
    """Every remedy beside the same drafter without it: acceptance, and the bottlenecks, at the last depth."""
    plain = {_but_for_remedy(view): view for view in views if not view.remedy}
    lines = []
    for view in views:
        without = plain.get(_but_for_remedy(view))
        if view.remedy and without is not None:
            pairs = zip(_bottlenecks(without), _bottlenecks(view), strict=True)
            gained = view.measures.get("mat_minus_plain")
            changes = (f"{a} to {b}" if a or b else "" for a, b in pairs)
            lines.append((view.label, view.capacity, gained.text(3) if gained else "", *changes))
    headings = (
        *("drafter", "matched by", "MAT gained, all positions", "MAT"),
        *("agreement", "query error", "own keys reached", "gate"),
    )
    return _table(headings, lines)


def _but_for_remedy(view: VariantView) -> tuple[object, ...]:
    return view.design, view.layers, view.injection, view.init, view.capacity


def _bottlenecks(view: VariantView) -> Iterator[str]:
    """MAT; agreement, query error and gradient share of own keys at the last depth; the gate at the end of training.
    Empty where there is none.
    """
    yield fixed(view.measure("mat").value, 2)
    yield fixed(view.agreement[-1].value, 3)
    yield fixed(view.limits.query_kl[-1], 2) if view.limits.query_kl else ""
    shares = [row["gradient_share"] for row in view.limits.gradients if row["group"].endswith("chain_attention.keys")]
    yield fixed(mean(shares), 3) if shares else ""
    yield fixed(view.limits.gate[-1][1], 3) if view.limits.gate else ""


def tuning_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every trial of the tuning, the chosen ones marked."""
    lines = tuple(
        (
            label_of(row),
            row["capacity"],
            number(row["learning_rate"]),
            number(row["warmup"]),
            number(row["gate_start"]),
            fixed(row["validation_kl"], 3),
            "chosen" if row["chosen"] else "",
        )
        for row in rows
        if "trial" in row
    )
    return _table(("drafter", "matched by", "learning rate", "warm-up", "gate's start", "validation KL", ""), lines)


def ablation_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What norms, start and layers are worth."""
    lines = tuple(
        (
            row["design"],
            row["ablation"],
            str(row["seeds"]),
            fixed(row["validation_kl"], 3),
            "" if row.get("difference") is None else fixed(row["difference"], 3),
            "" if row.get("difference") is None else f"{fixed(row['least'], 3)} to {fixed(row['most'], 3)}",
        )
        for row in rows
        if "ablation" in row
    )
    return _table(("drafter", "trained", "seeds", "validation KL", "difference", "of the seeds"), lines)


def _groups(views: Sequence[VariantView]) -> Iterable[Mapping[str, Any]]:
    return (row for view in views for row in view.limits.gradients)


def tasks_table(views: Sequence[VariantView]) -> Table:
    """MAT by task."""
    tasks = list(dict.fromkeys(task for view in views for task in view.tasks))
    lines = tuple(
        (v.label, v.capacity, *(v.tasks[task].text() if task in v.tasks else "" for task in tasks)) for v in views
    )
    return _table(("drafter", "matched by", *tasks), lines)


def speed_table(views: Sequence[VariantView]) -> Table:
    """Drafting latency and end-to-end speed."""
    lines = ((v.label, v.capacity, fixed(v.draft_ms, 2), fixed(v.tokens_per_second, 1), ratio(v.ratio)) for v in views)
    return _table(("drafter", "matched by", "ms a drafted token", "tokens/s", "to plain decoding"), lines)


def _table(headings: Sequence[str], lines: Iterable[tuple[str, ...]]) -> Table:
    """A dense table whose first two columns, the drafter and what it is matched by, are text."""
    return Table(tuple(headings), tuple(lines), tuple(column >= 2 for column in range(len(headings))), dense=True)


def _designs(views: Sequence[VariantView]) -> list[VariantView]:
    """One line a design: one layer, random start, the default injection."""
    return _where(views, lambda v: v.layers == 1 and v.init == "random" and not v.remedy and v.injection in ("", ROPE))


def _depths(views: Sequence[VariantView]) -> list[VariantView]:
    return _where(views, lambda v: v.design == "kv" and v.injection == ROPE and not v.remedy)


def _where(views: Sequence[VariantView], wanted: Callable[[VariantView], bool]) -> list[VariantView]:
    return [view for view in views if wanted(view)]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return str(value)
