"""Charts as inline SVG that follow the page's fonts and colours: lines, bars, and estimates with intervals."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftgauge.reporting.layout import LIGHT, Series, number, series, themed

# Inches. On the page a chart is about as many CSS pixels wide as it has points, so text keeps its size.
PANEL, SMALL_PANEL = (4.4, 3.2), (3.3, 2.6)
LEGEND_ROW = 0.2
RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud, and takes the page's font
    "svg.hashsalt": "draftgauge",
    "text.parse_math": False,  # tasks and files are named as they are
    "font.size": 10,
    "text.color": LIGHT["muted"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.titlecolor": LIGHT["muted"],
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.edgecolor": LIGHT["line"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 10,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "xtick.color": LIGHT["line"],
    "ytick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["muted"],
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
UNSTAMPED = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Line:
    """One line of a chart. ``low`` and ``high`` are the ends of intervals: a band, or bars where the points are not
    ``joined``. The style is by the place in the chart if None. Only points at ``marked`` indices have a marker, all if
    None."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: Series | None = field(default=None, kw_only=True)
    joined: bool = field(default=True, kw_only=True)
    marked: Sequence[int] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Axes:
    """What the axes of a line chart show: titles with units, ends of the vertical axis, places of the horizontal
    ticks, the size in inches.
    """

    x: str
    y: str
    ylim: tuple[float | None, float | None] = (None, None)
    ticks: Sequence[float] | None = None
    size: tuple[float, float] = PANEL


def line_chart(
    name: str, frame: Axes, lines: Sequence[Line], levels: Mapping[str, tuple[float, Series]] | None = None
) -> Markup:
    """Lines with their bands over level lines."""
    with matplotlib.rc_context(RC):
        axes = _axes(frame.x, frame.y, frame.size, len(lines) + len(levels or {}))
        for label, (height, style) in (levels or {}).items():
            axes.axhline(height, label=label, **style.line)
        for place, line in enumerate(lines):
            style = line.style or series(place)
            if line.joined:
                axes.plot(line.x, line.y, label=line.label, markevery=line.marked, **style.line)
                if len(line.low):
                    axes.fill_between(line.x, line.low, line.high, color=LIGHT[style.colour], alpha=0.14, linewidth=0)
            else:
                axes.plot(line.x, line.y, label=line.label, **style.line | {"linestyle": "none"})
                axes.vlines(line.x, line.low, line.high, color=LIGHT[style.colour], linewidth=1.4)
        axes.set_ylim(*frame.ylim)
        if frame.ticks is not None:
            axes.set_xticks(frame.ticks, [f"{place:g}" for place in frame.ticks])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
        ends = (f"{line.label}: {number(line.y[0])} to {number(line.y[-1])}" for line in lines if len(line.y))
        return _svg(axes, name, f"{frame.y}, by {frame.x}. {'; '.join(ends)}.")


def bar_chart(name: str, ylabel: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]]) -> Markup:
    """Bars side by side: label -> height in every group."""
    with matplotlib.rc_context(RC):
        axes = _axes("", ylabel, PANEL, len(bars))
        width = 0.8 / len(bars)
        for place, (label, heights) in enumerate(bars.items()):
            at = np.arange(len(groups)) + (place - (len(bars) - 1) / 2) * width
            axes.bar(at, heights, width * 0.92, color=LIGHT[series(place).colour], label=label)
        axes.set_xticks(range(len(groups)), groups)
        axes.grid(False, axis="x")
        values = (f"{label}: {', '.join(map(number, heights))}" for label, heights in bars.items())
        return _svg(axes, name, f"{ylabel}; {', '.join(groups)}. {'; '.join(values)}.")


def interval_chart(
    name: str, xlabel: str, estimates: Sequence[tuple[str, float, float, float]], styles: Sequence[Series] = ()
) -> Markup:
    """Estimates with the ends of their intervals (NaN for none), a named row each, the first at the top."""
    with matplotlib.rc_context(RC):
        axes = _axes(xlabel, "", (6.6, 0.9 + 0.25 * len(estimates)), 0)
        for place, (_, value, low, high) in enumerate(estimates):
            style = styles[place] if styles else series(0)
            axes.hlines(place, low, high, color=LIGHT[style.colour], linewidth=1.6)
            axes.plot([value], [place], **style.line | {"linestyle": "none"})
        axes.set_yticks(range(len(estimates)), [label for label, *_ in estimates])
        axes.set_ylim(len(estimates) - 0.4, -0.6)
        values = (f"{label} {number(value)}" for label, value, *_ in estimates)
        return _svg(axes, name, f"{xlabel}: {'; '.join(values)}.")


def _axes(xlabel: str, ylabel: str, size: tuple[float, float], labels: int) -> Any:
    """Empty axes; a legend of several labels gets rows of its own above them."""
    rows = -(-labels // 2) if labels > 1 else 0
    figure = Figure(figsize=(size[0], size[1] + LEGEND_ROW * rows), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.set_xlabel(xlabel, loc="right")
    axes.set_title(ylabel)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    return axes


def _svg(axes: Any, name: str, description: str) -> Markup:
    """The chart as an inline ``<svg>``: without what only a file of its own needs, its ids prefixed by ``name``."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        axes.figure.legend(handles, labels, loc="outside upper left", ncols=2)
    buffer = io.StringIO()
    axes.figure.savefig(buffer, format="svg", transparent=True, metadata=UNSTAMPED)
    document = buffer.getvalue()
    body = document[document.index("<svg") :]
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    opening = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(box[1], description)
    body = body[body.index(">") + 1 :]
    prefix = "".join(letter if letter.isascii() and letter.isalnum() else f"_{ord(letter)}_" for letter in name)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda match: f' id="{prefix}-{match[1]}"' if match[1] in used else "", body)
    body = re.sub(r'xlink:href="#', f'href="#{prefix}-', body).replace("url(#", f"url(#{prefix}-")
    body = re.sub(r"(\d+\.\d\d)\d+", r"\1", body)  # a hundredth of a point is finer than any screen
    return opening + Markup(themed(re.sub(r"\s*\n\s*", "\n", body)))  # matplotlib escapes what it draws
