"""The charts of the KVShot report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from markupsafe import Markup

from draftgauge.reporting.style import LIGHT, Series, number, series
from draftgauge.reporting.svg import PANEL, panel, to_svg
from draftgauge.studies.kvshot.cells import EQUAL_WIDTH
from draftgauge.studies.kvshot.views import Estimate, VariantView

# A design keeps its colour in every chart.
DESIGN_STYLES = {
    "hidden": Series("blue", (), "o"),
    "kv": Series("vermillion", (5, 1.5), "s"),
    "hybrid": Series("green", (), "^"),
    "cross": Series("purple", (5, 1.5, 1.2, 1.5), "D"),
    "none": Series("muted", (1.2, 1.8), "v"),
}


ROW, LETTER = 0.19, 0.064  # inches of a line of names, and of one of their letters
WIDE = 6.6  # inches of a panel with a column of names
Range = tuple[float, float]


def design_style(view: VariantView) -> Series:
    """Of a design."""
    return DESIGN_STYLES[view.design]


def styles(views: Sequence[VariantView]) -> list[Series]:
    """How the lines of one panel are told apart: by design, or one style each where a design comes more than once."""
    if len({view.design for view in views}) == len(views):
        return [design_style(view) for view in views]
    return [series(index) for index in range(len(views))]


def depth_range(views: Sequence[VariantView], figure: str) -> Range:
    """Percent that hold all lines of ``alpha`` or ``agreement`` with their bands, the same for all panels."""
    parts = [part for view in views for each in getattr(view, figure) for part in each if math.isfinite(part)]
    low, high = 100 * min(parts, default=0.0), 100 * max(parts, default=1.0)
    return max(0.0, 5 * math.floor(low / 5)), min(102.0, 5 * math.ceil(high / 5) + 2)


def alpha_panel(views: Sequence[VariantView], name: str, limits: Range) -> Markup:
    """Acceptance by depth with 95% bands."""
    return _depth_panel(views, ("alpha", "Acceptance"), name, "accepted, given all before, %", limits)


def agreement_panel(views: Sequence[VariantView], name: str, limits: Range) -> Markup:
    """Agreement over all positions by depth with 95% bands."""
    return _depth_panel(views, ("agreement", "Agreement"), name, "agreement, all positions, %", limits)


def query_panel(views: Sequence[VariantView]) -> Markup:
    """Query estimation error by depth."""
    with panel("depth of the draft step, k", "KL to the target's query, nats") as axes:
        for view in views:
            style, values = design_style(view), view.limits.query_kl
            axes.plot(range(len(values)), values, **style.line)
        axes.set_ylim(bottom=0)
        ends = (f"{v.label} {number(v.limits.query_kl[0])} to {number(v.limits.query_kl[-1])}" for v in views)
        return to_svg(axes, "query-error", f"Query estimation error, first to last depth: {'; '.join(ends)}.")


def share_panel(views: Sequence[VariantView], kinds: Sequence[str]) -> Markup:
    """Share of positions that the loss reaches, by kind of parameter group."""
    with _named_rows("positions reached, %", [_in_words(kind) for kind in kinds]) as axes:
        for view in views:
            style = design_style(view)
            points = [(position, share) for position, kind in enumerate(kinds) for share in _shares(view, kind)]
            positions, shares = [position for position, _ in points], [100 * share for _, share in points]
            axes.plot(shares, positions, color=style.hex, marker=style.marker, linestyle="")
        axes.set_xlim(0, 102)
        return to_svg(axes, "gradient-share", f"Share of positions that the loss reaches: {', '.join(kinds)}.")


def gate_panel(views: Sequence[VariantView]) -> Markup:
    """Mean openness of the gate over training."""
    with panel("step of training", "mean openness of the gate") as axes:
        for view in views:
            style = design_style(view)
            steps, openness = zip(*view.limits.gate, strict=True)
            axes.plot(steps, openness, **style.line)
        axes.set_ylim(0, 1)
        ends = (f"{v.label} {number(v.limits.gate[0][1])} to {number(v.limits.gate[-1][1])}" for v in views)
        return to_svg(axes, "gate", f"Openness of the gate, first to last step: {'; '.join(ends)}.")


def _shares(view: VariantView, kind: str) -> list[float]:
    return [row["gradient_share"] for row in view.limits.gradients if row["group"].endswith(kind)]


def _in_words(kind: str) -> str:
    return kind.replace("_", " ").replace(".", ", ")


def _depth_panel(
    views: Sequence[VariantView], measure: tuple[str, str], name: str, ylabel: str, limits: Range
) -> Markup:
    figure, title = measure
    with panel("depth of the draft step, k", ylabel) as axes:
        for view, style in zip(views, styles(views), strict=True):
            by_depth = getattr(view, figure)
            depth = np.arange(len(by_depth))
            value, low, high = (100 * np.array([getattr(a, key) for a in by_depth]) for key in ("value", "low", "high"))
            axes.fill_between(depth, low, high, color=style.hex, alpha=0.14, linewidth=0)
            axes.plot(depth, value, **style.line)
        axes.set_ylim(*limits)
        axes.set_xticks(range(max(len(view.alpha) for view in views)))
        ends = "; ".join(
            f"{v.label} {_percent(getattr(v, figure)[0])} at depth 0, {_percent(getattr(v, figure)[-1])} at depth "
            f"{len(v.alpha) - 1}"
            for v in views
        )
        return to_svg(axes, f"{figure}-{name}", f"{title} by depth: {ends}.")


def mat_panel(views: Sequence[VariantView]) -> Markup:
    """MAT of every drafter with its interval, in the order of the table."""
    names = [view.label + (", equal width" if view.capacity == EQUAL_WIDTH else "") for view in views]
    with _named_rows("MAT, tokens a step", names, WIDE) as axes:
        for row, view in enumerate(views):
            style, mat = design_style(view), view.measure("mat")
            axes.plot([mat.low, mat.high], [row, row], color=style.hex, linewidth=1.6)
            axes.plot([mat.value], [row], color=style.hex, marker=style.marker, linestyle="")
        return to_svg(axes, "mat", "; ".join(f"{v.label} MAT {v.measure('mat').text()}" for v in views) + ".")


def retention_panel(views: Sequence[VariantView]) -> Markup:
    """Retention against acceptance at depth 0: only what is high in both is good at depth."""
    points = [
        (view, _scaled(view.measure("alpha_first"), 100), _scaled(view.measure("retention"), 100)) for view in views
    ]
    text = "; ".join(
        f"{v.label} {_percent(v.measure('alpha_first'))} and {_percent(v.measure('retention'))}" for v in views
    )
    labels = "accepted at depth 0, %", "retention, %"
    return _named_points(labels, points, "retention", f"Acceptance at depth 0 and retention: {text}.")


def latency_panel(views: Sequence[VariantView]) -> Markup:
    """MAT against the time that a drafted token takes."""
    timed = [view for view in views if not math.isnan(view.draft_ms)]
    points = [(view, Estimate(view.draft_ms, float("nan"), float("nan")), view.measure("mat")) for view in timed]
    text = "; ".join(f"{v.label} {number(v.draft_ms, 2)} ms, MAT {number(v.measure('mat').value)}" for v in timed)
    labels = "milliseconds a drafted token", "MAT, tokens a step"
    return _named_points(labels, points, "latency", f"Drafting time and MAT: {text}.")


def distance_panel(views: Sequence[VariantView], measure: str, ylabel: str) -> Markup:
    """Acceptance by the context that a token needs."""
    names = list(dict.fromkeys(name for view in views for name in view.distances))
    with panel("context that the token needs, tokens", ylabel) as axes:
        for view, style in zip(views, styles(views), strict=True):
            estimates = [view.distances.get(name, {}).get(measure) for name in names]
            measured = [(position, estimate) for position, estimate in enumerate(estimates) if estimate is not None]
            positions = [position for position, _ in measured]
            value, low, high = (
                100 * np.array([getattr(e, key) for _, e in measured]) for key in ("value", "low", "high")
            )
            axes.fill_between(positions, low, high, color=style.hex, alpha=0.14, linewidth=0)
            axes.plot(positions, value, **style.line)
        axes.set_ylim(0, 102)
        axes.set_xticks(range(len(names)), names)
        return to_svg(
            axes, f"distance-{measure}", f"Acceptance by needed context ({', '.join(names)} tokens), {ylabel}."
        )


@contextmanager
def _named_rows(xlabel: str, names: Sequence[str], width: float = PANEL[0]) -> Iterator[Any]:
    """A panel with a row for each name, the first at the top."""
    size = width, max(2.0, 0.9 + 1.3 * ROW * len(names))
    with panel(xlabel, "", size, left=0.2 + LETTER * max(map(len, names))) as axes:
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        yield axes


def _named_points(
    labels: tuple[str, str], points: Sequence[tuple[VariantView, Estimate, Estimate]], name: str, description: str
) -> Markup:
    """Drafters as points with intervals; their names stand in a column, and a line leads to each."""
    known = [point for point in points if math.isfinite(point[1].value) and math.isfinite(point[2].value)]
    size = WIDE, max(PANEL[1], 0.9 + ROW * len(known))
    with panel(*labels, size, right=0.4 + LETTER * max((len(view.label) for view, _, _ in known), default=0)) as axes:
        for view, x, y in known:
            _point(axes, design_style(view), x, y)
        (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
        axes.set_xlim(left, right)
        axes.set_ylim(low, high)
        column, step = right + 0.06 * (right - left), (high - low) * ROW / (size[1] - 0.72)
        for (view, x, y), level in zip(known, _spread([y.value for _, _, y in known], step, low, high), strict=True):
            axes.annotate(
                view.label,
                (x.value, y.value),
                (column, level),
                va="center",
                fontsize=9,
                color=LIGHT["muted"],
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": LIGHT["line"],
                    "linewidth": 0.6,
                    "relpos": (0, 0.5),
                    "shrinkA": 1,
                },
            )
        return to_svg(axes, name, description)


def _spread(values: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Heights of labels, at least ``step`` apart and in the order of the values, as near to them as this allows."""
    heights, order = list(values), np.argsort(values).tolist()
    above, below = high + step, low - step
    for index in reversed(order):
        above = heights[index] = min(heights[index], above - step)
    for index in order:
        below = heights[index] = max(heights[index], below + step)
    return heights


def _point(axes: Any, style: Series, x: Estimate, y: Estimate) -> None:
    if not math.isnan(x.low):
        axes.plot([x.low, x.high], [y.value, y.value], color=style.hex, linewidth=1.2, alpha=0.6)
    if not math.isnan(y.low):
        axes.plot([x.value, x.value], [y.low, y.high], color=style.hex, linewidth=1.2, alpha=0.6)
    axes.plot(
        [x.value],
        [y.value],
        color=style.hex,
        marker=style.marker,
        markersize=6.5,
        markeredgecolor=LIGHT["card"],
        linestyle="",
    )


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(*(factor * part for part in estimate))


def _percent(estimate: Estimate) -> str:
    return "unknown" if math.isnan(estimate.value) else f"{100 * estimate.value:.0f}%"
