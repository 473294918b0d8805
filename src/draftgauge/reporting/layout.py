"""What every page shares: its frame, one HTML file that fetches nothing, and tables made from rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from draftgauge.core.provenance import command_line, timestamp
from draftgauge.reporting import style

KIT = "draftgauge.reporting"
FORMATS = (style.number, style.percent, style.ratio, style.signed)
LINE = 32  # characters of a cell that stays in one line
Format = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Format]]
"""Key of a row -> heading and format of its column."""
Facts = tuple[tuple[str, str], ...]


def render_page(template: str, title: str, values: Mapping[str, Any], package: str = KIT) -> str:
    pages = environment(*dict.fromkeys((package, KIT)))
    pages.globals.update({function.__name__: function for function in FORMATS})
    colours = {"light": style.colour_variables(dark=False), "dark": style.colour_variables(dark=True)}
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
        tuple(style.MISSING if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items())
        for row in rows
    ]
    return Table(
        headings=tuple(heading for heading, _ in shown.values()),
        lines=tuple(lines),
        looks=tuple(map(_look, zip(*lines, strict=True))),
        kinds=tuple(str(row.get("kind", "")) for row in rows),
        caption=caption,
    )


def _look(cells: Sequence[str]) -> str:
    if any(re.match(f"[+{style.MINUS}]?\\d", cell) for cell in cells):
        return "n"
    return "prose" if max(map(len, cells)) > LINE else ""


def decimals(count: int) -> Format:
    return lambda value: style.fixed(value, count)


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
