"""What every page shares: its frame (one HTML file that fetches nothing), tables from rows, colours, number formats.

Charts are drawn in the light palette. :func:`themed` replaces each colour by a CSS variable, so that one chart is
readable in light and dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from draftgauge.core.provenance import command_line, timestamp

TIMES, MISSING, MINUS = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}", "\N{MINUS SIGN}"

# Hues after Okabe and Ito (2008), distinguishable with any colour vision; contrast of 3:1 or more on either card.
COLOURS = {
    "page": ("#f6f7f9", "#12151b"),
    "ink": ("#1f2430", "#e8eaf0"),
    "muted": ("#5b6270", "#a5acba"),
    "line": ("#c9cdd6", "#474d5b"),
    "grid": ("#e6e8ee", "#2c313c"),
    "card": ("#fffffe", "#1b1f28"),
    "blue": ("#0072b2", "#4fb0ec"),
    "vermillion": ("#d55e00", "#f28a45"),
    "green": ("#00896a", "#2fc79c"),
    "purple": ("#b45f93", "#de9cc4"),
    "ochre": ("#a87900", "#e8b43c"),
    "sky": ("#2f8fc7", "#8fd0f5"),
}
"""Name -> its colour on a light and on a dark page."""
LIGHT = {name: light for name, (light, _) in COLOURS.items()}


@dataclass(frozen=True)
class Series:
    """How one of several lines is drawn: by hue, dash and marker at once, for any colour vision."""

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = ""

    @property
    def line(self) -> dict[str, Any]:
        return {"color": LIGHT[self.colour], "linestyle": (0, self.dash) if self.dash else "-", "marker": self.marker}


SERIES = (
    Series("blue", (), "o"),
    Series("vermillion", (5, 1.5), "s"),
    Series("green", (1.2, 1.2), "^"),
    Series("purple", (5, 1.5, 1.2, 1.5), "D"),
    Series("ochre", (3, 1), "v"),
    Series("sky", (8, 2), "P"),
)


def series(index: int) -> Series:
    turn, hue = divmod(index, len(SERIES))
    shape = SERIES[(hue + turn) % len(SERIES)]
    return Series(SERIES[hue].colour, shape.dash, shape.marker)


def themed(svg: str) -> str:
    names = {value: name for name, value in LIGHT.items()}
    return re.sub("|".join(names), lambda match: f"var(--{names[match[0]]})", svg)


def colour_variables(dark: bool) -> str:
    return " ".join(f"--{name}: {values[dark]};" for name, values in COLOURS.items())


def number(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits, never in scientific notation; an en dash for None and NaN."""
    if value is None or math.isnan(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def fixed(value: float | None, decimals: int) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:,.{decimals}f}"


def p_text(p_value: float) -> str:
    return "below 0.001" if p_value < 0.001 else number(p_value, 2)


def ratio(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.2f}{TIMES}"


def percent(share: float) -> str:
    if math.isnan(share):
        return MISSING
    return f"{share * 100:.1f}%" if abs(share) < 0.0995 else f"{share * 100:.0f}%"


def signed(share: float | None, decimals: int = 1) -> str:
    if share is None or math.isnan(share):
        return MISSING
    shown = f"{share:+.{decimals}%}".replace("-", MINUS)
    return shown if any(digit in shown for digit in "123456789") else "0%"


KIT = "draftgauge.reporting"
FORMATS = (number, percent, ratio, signed)
LINE = 32  # characters of a cell that stays in one line
Format = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Format]]
"""Key of a row -> heading and format of its column."""
Facts = tuple[tuple[str, str], ...]


def render_page(template: str, title: str, values: Mapping[str, Any], package: str = KIT) -> str:
    pages = environment(*dict.fromkeys((package, KIT)))
    pages.globals.update({function.__name__: function for function in FORMATS})
    colours = {"light": colour_variables(dark=False), "dark": colour_variables(dark=True)}
    return pages.get_template(template).render({"title": title} | colours | dict(values))


@dataclass(frozen=True)
class Table:
    """Headings and printed cells; the first column names the line. A line of kind "best" is bold, of "bound" muted.
    Figures ("n" of ``looks``) are set flush right, and only "prose" is broken into lines."""

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    looks: tuple[str, ...]
    kinds: tuple[str, ...]
    caption: str = ""


def table_of(rows: Sequence[Mapping[str, Any]], columns: Columns, caption: str = "") -> Table:
    """Rows as text; columns that no row has are left out. ``kind`` of a row is that of its line."""
    shown = {key: column for key, column in columns.items() if any(row.get(key) is not None for row in rows)}
    lines = [
        tuple(MISSING if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items()) for row in rows
    ]
    return Table(
        headings=tuple(heading for heading, _ in shown.values()),
        lines=tuple(lines),
        looks=tuple(map(_look, zip(*lines, strict=True))),
        kinds=tuple(str(row.get("kind", "")) for row in rows),
        caption=caption,
    )


def _look(cells: Sequence[str]) -> str:
    if any(re.match(f"[+{MINUS}]?\\d", cell) for cell in cells):
        return "n"
    return "prose" if max(map(len, cells)) > LINE else ""


def decimals(count: int) -> Format:
    return lambda value: fixed(value, count)


def named(form: Format, *keys: str) -> dict[str, tuple[str, Format]]:
    return {key: (words(key), form) for key in keys}


def ends(row: Mapping[str, Any], prefix: str, form: Format) -> str | None:
    low, high = row.get(f"{prefix}low"), row.get(f"{prefix}high")
    if low is None or high is None or not abs(high - low) > 1e-9 * abs(high):
        return None
    return f"{form(low)} to {form(high)}"


def words(name: str) -> str:
    return name.replace("_", " ")


def report_facts() -> Facts:
    return (("report made by", command_line()), ("report made", timestamp()))


def facts_of(facts: Mapping[str, Any]) -> Facts:
    return tuple((words(label), text) for label, value in facts.items() if (text := _plain(value)))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return "" if value is None else str(value)


def environment(*packages: str, autoescape: bool = True) -> Environment:
    """Templates of some packages, the first one that has a name winning; an undefined value is an error."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in packages]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
