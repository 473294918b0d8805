"""One small matplotlib chart as inline SVG that follows the page's fonts and colours."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftgauge.reporting.style import LIGHT, themed

# Width and height in inches. On the page a panel is about as many CSS pixels wide as it has points, so text keeps its
# size.
PANEL, SMALL_PANEL = (4.4, 3.0), (3.3, 2.5)
# Room for tick labels and axis titles, in inches: left, right, below, above.
MARGINS = (0.5, 0.1, 0.44, 0.28)

RC: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be selected, searched and read aloud, and takes the page's font
    "font.size": 10,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.edgecolor": LIGHT["line"],
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 10,
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": LIGHT["line"],
    "ytick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["muted"],
    "ytick.labelcolor": LIGHT["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}


@contextmanager
def panel(
    xlabel: str,
    ylabel: str,
    size: tuple[float, float] = PANEL,
    left: float = MARGINS[0],
    right: float = MARGINS[1],
) -> Iterator[Any]:
    """Axes of one panel, within the report's style; turn them into SVG with :func:`to_svg` inside the block.

    Args:
        xlabel: what lies along the horizontal axis, with its unit.
        ylabel: likewise for the vertical axis; it is written level, above the axis.
        size: width and height in inches.
        left, right: margins in inches, for names that stand beside the axes.
    """
    (width, height), (below, above) = size, MARGINS[2:]
    box = (left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height)
    with matplotlib.rc_context(RC):
        axes: Any = Figure(figsize=size).add_axes(box)
        axes.set_xlabel(xlabel, loc="right")
        axes.text(
            -left / (width - left - right) + 0.01,
            1.045,
            ylabel,
            transform=axes.transAxes,
            color=LIGHT["muted"],
            va="bottom",
        )
        axes.yaxis.set_major_locator(MaxNLocator(5))
        yield axes


def to_svg(axes: Any, name: str, description: str) -> Markup:
    """The figure of ``axes`` as an inline ``<svg>``.

    Args:
        axes: from :func:`panel`.
        name: unique on the page; it prefixes the ids inside, which would clash between charts otherwise.
        description: what the chart shows, for screen readers.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "draftgauge"}):
        unstamped = {"Date": None, "Creator": None, "Format": None, "Type": None}
        axes.figure.savefig(buffer, format="svg", transparent=True, metadata=unstamped)
    return _inline(buffer.getvalue(), name, description)


def _inline(document: str, name: str, description: str) -> Markup:
    """Strip what only a stand-alone SVG file needs, and what would leak into the page."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="([^"]+)"', body)
    assert box is not None
    opening = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(box[1], description)
    body = body[body.index(">") + 1 :]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda match: f' id="{name}-{match[1]}"' if match[1] in used else "", body)
    body = re.sub(
        r'xlink:href="#|(url\()#', lambda match: f"{match[1]}#{name}-" if match[1] else f'href="#{name}-', body
    )
    body = re.sub(r"(\d+\.\d\d)\d+", r"\1", body)  # a hundredth of a point is finer than any screen
    return opening + Markup(themed(re.sub(r"\s*\n\s*", "\n", body)))  # matplotlib escapes what it draws
