"""Charts of policies that choose the draft length: by cost ratio, along one output, and their calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from draftgauge.reporting.choosing_views import ChoosingView, LengthLine, ReliabilityCurve
from draftgauge.reporting.figures import HINDSIGHT, slug
from draftgauge.reporting.style import LIGHT, Series, compression_title, number, percent, series
from draftgauge.reporting.svg import panel, to_svg

FIXED, UNCHARTED = Series("muted", (), ""), Series("muted", (5, 1.5), "o")
ACCEPTED, REJECTED = Series("blue", (), ""), Series("vermillion", (), "")
STRIP = (9.6, 1.35)
# Bins of fewer tokens say more about chance than about the prediction.
MIN_BIN = 20
# Of the captured share: a policy far below the best fixed length would flatten all others.
LOWEST_SHARE = -0.5


def gain_panel(view: ChoosingView) -> Markup:
    """Gain over the best fixed length against the cost ratio, a line with its 95% band for every policy."""
    with panel("cost of a drafted token over a verification", "gain over the best fixed length, %") as axes:
        axes.axhline(0, color=FIXED.hex)
        for index, curve in enumerate(view.sweep):
            style = series(index)
            axes.fill_between(
                curve.ratios,
                _percents(curve.gain_low),
                _percents(curve.gain_high),
                color=style.hex,
                alpha=0.12,
                linewidth=0,
            )
            axes.plot(curve.ratios, _percents(curve.gain), **style.line)
        low, high = _extent([value for curve in view.sweep for value in (*curve.gain_low, *curve.gain_high)])
        axes.set_ylim(100 * max(low, -0.5), 100 * high)
        _ratio_axis(axes, view)
        return to_svg(
            axes,
            f"gain-{slug(view.name)}",
            _describe(view, "Gain over the best fixed length", [c.gain for c in view.sweep]),
        )


def captured_panel(view: ChoosingView) -> Markup:
    """Share of the way from the best fixed length to the hindsight optimum, against the cost ratio."""
    with panel("cost of a drafted token over a verification", "captured of the gap to the optimum, %") as axes:
        axes.axhline(0, color=FIXED.hex)
        axes.axhline(100, color=HINDSIGHT.hex, linestyle=HINDSIGHT.linestyle)
        for index, curve in enumerate(view.sweep):
            axes.plot(curve.ratios, _percents(curve.captured), **series(index).line)
        low, _ = _extent([value for curve in view.sweep for value in curve.captured])
        axes.set_ylim(100 * max(low, LOWEST_SHARE), 106)
        _ratio_axis(axes, view)
        text = _describe(
            view, "Share captured of the gap to the hindsight optimum", [curve.captured for curve in view.sweep]
        )
        return to_svg(axes, f"captured-{slug(view.name)}", text)


def lengths_panel(view: ChoosingView, line: LengthLine) -> Markup:
    """Drafted tokens along an output: a bar a step, as wide as what it committed, its accepted part filled."""
    top = max(drafted for other in view.lengths.lines for _, drafted, _, _ in other.steps)  # one scale for all lines
    with panel("output token", "drafted tokens", STRIP) as axes:
        for position, drafted, accepted, committed in line.steps:
            width = committed - 0.25
            if drafted == 0:
                axes.plot(
                    [position, position + width], [0, 0], color=LIGHT["muted"], linewidth=3, solid_capstyle="butt"
                )
            axes.bar(position, accepted, width, align="edge", color=ACCEPTED.hex, alpha=0.75)
            axes.bar(position, drafted - accepted, width, accepted, align="edge", color=REJECTED.hex, alpha=0.5)
        axes.set_xlim(0, view.lengths.tokens)
        axes.set_ylim(0, max(top, 4) * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        committed = sum(step[3] for step in line.steps)
        text = (
            f"Draft lengths of {line.policy} along one output, {compression_title(view.name)} target: "
            f"{len(line.steps)} steps commit {committed} tokens."
        )
        return to_svg(axes, f"lengths-{slug(view.name)}-{slug(line.policy)}", text)


def calibration_panel(view: ChoosingView) -> Markup:
    """Accepted share against predicted chance, bin by bin; the larger a dot, the more tokens."""
    most = max((bin_.count for curve in view.calibration for bin_ in curve.bins), default=1)
    with panel("predicted chance of acceptance, %", "accepted, %") as axes:
        axes.plot([0, 100], [0, 100], color=FIXED.hex, linewidth=1.2)
        for curve in view.calibration:
            _reliability(axes, curve, calibration_style(view, curve), most)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 103)
        parts = "; ".join(
            f"{c.name}: Brier score {number(c.brier)}, calibration error {percent(c.calibration_error)}"
            for c in view.calibration
        )
        return to_svg(
            axes, f"calibration-{slug(view.name)}", f"Calibration, {compression_title(view.name)} target. {parts}."
        )


def calibration_style(view: ChoosingView, curve: ReliabilityCurve) -> Series:
    """A policy's line as in the other charts; the drafter's confidence, and policies that are not there, in grey."""
    names = [line.policy for line in view.sweep]
    return series(names.index(curve.name)) if curve.name in names else UNCHARTED


def _reliability(axes: Any, curve: ReliabilityCurve, style: Series, most: int) -> None:
    full = [bin_ for bin_ in curve.bins if bin_.count >= MIN_BIN]
    predicted, accepted = ([100 * getattr(bin_, name) for bin_ in full] for name in ("predicted", "accepted"))
    axes.plot(predicted, accepted, color=style.hex, linestyle=style.linestyle, linewidth=1.4)
    sizes = [8 + 60 * bin_.count / most for bin_ in full]
    axes.scatter(
        predicted,
        accepted,
        s=sizes,
        color=style.hex,
        marker=style.marker,
        edgecolors=LIGHT["card"],
        linewidths=0.6,
        zorder=3,
    )


def _ratio_axis(axes: Any, view: ChoosingView) -> None:
    """Ratios on a logarithmic scale, with an upright line at the measured one."""
    ratios = view.sweep[0].ratios
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axes.set_xlim(min(*ratios, view.cost_ratio) / 1.15, max(*ratios, view.cost_ratio) * 1.15)
    axes.axvline(view.cost_ratio, color=LIGHT["muted"], linewidth=1.2, linestyle=(0, (1.2, 1.8)), zorder=1)


def _extent(values: Sequence[float]) -> tuple[float, float]:
    """The range of some figures and 0, with room about it."""
    finite = [value for value in values if np.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    room = 0.08 * (high - low) + 0.005
    return low - room, high + room


def _percents(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def _describe(view: ChoosingView, what: str, values: Sequence[Sequence[float]]) -> str:
    parts = (
        f"{curve.policy} "
        f"{', '.join(f'{percent(value)} at {ratio:g}' for ratio, value in zip(curve.ratios, shown, strict=True))}"
        for curve, shown in zip(view.sweep, values, strict=True)
    )
    return f"{what} against the cost ratio, {compression_title(view.name)} target. {'; '.join(parts)}."
