"""Colours, line styles and number formats that charts, tables and page share.

Charts are drawn in the light palette; :func:`themed` then replaces each colour by a CSS variable of the page, so that
the same chart is readable in light and dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TIMES = "\N{MULTIPLICATION SIGN}"
MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Colour:
    """One named colour in both schemes."""

    name: str
    light: str
    dark: str


# Hues after Okabe and Ito (2008), told apart with any colour vision; lightness moved to a contrast of 3:1 or more on
# either card.
COLOURS = (
    Colour("page", "#f6f7f9", "#12151b"),
    Colour("ink", "#1f2430", "#e8eaf0"),
    Colour("muted", "#5b6270", "#a5acba"),
    Colour("line", "#c9cdd6", "#474d5b"),
    Colour("grid", "#e6e8ee", "#2c313c"),
    Colour("card", "#fffffe", "#1b1f28"),
    Colour("blue", "#0072b2", "#4fb0ec"),
    Colour("vermillion", "#d55e00", "#f28a45"),
    Colour("green", "#00896a", "#2fc79c"),
    Colour("purple", "#b45f93", "#de9cc4"),
    Colour("ochre", "#a87900", "#e8b43c"),
    Colour("sky", "#2f8fc7", "#8fd0f5"),
)
LIGHT = {colour.name: colour.light for colour in COLOURS}


@dataclass(frozen=True)
class Series:
    """How one of several lines is drawn: told apart by hue, dash and marker at once."""

    colour: str
    dash: tuple[float, ...]
    marker: str

    @property
    def hex(self) -> str:
        """The light colour, for matplotlib."""
        return LIGHT[self.colour]

    @property
    def linestyle(self) -> str | tuple[int, tuple[float, ...]]:
        """For matplotlib."""
        return (0, self.dash) if self.dash else "-"

    @property
    def line(self) -> dict[str, Any]:
        """All three as keywords of matplotlib's ``plot``."""
        return {"color": self.hex, "linestyle": self.linestyle, "marker": self.marker}


SERIES = (
    Series("blue", (), "o"),
    Series("vermillion", (5, 1.5), "s"),
    Series("green", (1.2, 1.2), "^"),
    Series("purple", (5, 1.5, 1.2, 1.5), "D"),
    Series("ochre", (3, 1), "v"),
    Series("sky", (8, 2), "P"),
)


def series(index: int) -> Series:
    """The style of the ``index``-th line; from the seventh on hues come again, with other dashes and markers."""
    turn, hue = divmod(index, len(SERIES))
    shape = SERIES[(hue + turn) % len(SERIES)]
    return Series(SERIES[hue].colour, shape.dash, shape.marker)


def p_text(p_value: float) -> str:
    """A p-value with two significant digits, small ones as a bound."""
    return "below 0.001" if p_value < 0.001 else number(p_value, 2)


def themed(svg: str) -> str:
    """Replace every palette colour of a chart by its CSS variable."""
    names = {colour.light: colour.name for colour in COLOURS}
    return re.sub("|".join(names), lambda match: f"var(--{names[match[0]]})", svg)


def colour_variables(scheme: str) -> str:
    """CSS declarations of the palette in ``"light"`` or ``"dark"``."""
    return " ".join(f"--{colour.name}: {getattr(colour, scheme)};" for colour in COLOURS)


def number(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits, never in scientific notation; an en dash for None and NaN."""
    if value is None or math.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def fixed(value: float | None, decimals: int) -> str:
    """A figure of a table column, all with the same decimals so that they line up."""
    return MISSING if value is None or math.isnan(value) else f"{value:,.{decimals}f}"


def column_decimals(values: Sequence[float]) -> int:
    """Decimals for a column: as many as give its largest value four significant digits, two at the most."""
    largest = max(values, default=1.0)
    return min(2, max(0, 3 - math.floor(math.log10(largest)))) if largest > 0 else 0


def ratio(value: float | None) -> str:
    """How many times: ``2.13x`` with a proper sign."""
    return MISSING if value is None or math.isnan(value) else f"{value:.2f}{TIMES}"


def percent(share: float) -> str:
    """A share in whole percent, with one decimal below 10%."""
    if math.isnan(share):
        return MISSING
    return f"{share * 100:.1f}%" if abs(share) < 0.0995 else f"{share * 100:.0f}%"


def signed(share: float, decimals: str = "1") -> str:
    """A share in percent with its sign; zero has none."""
    shown = f"{share:+.{decimals}%}".replace("-", MINUS)
    return shown if any(digit in shown for digit in "123456789") else "0%"


def compression_title(name: str) -> str:
    """A compression within a sentence."""
    return "uncompressed" if name == "none" else name


def compression_heading(name: str) -> str:
    """A compression at the start of a heading."""
    return "Uncompressed" if name == "none" else name
