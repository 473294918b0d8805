"""What every page shares: its frame, one HTML file that fetches nothing, and tables made from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.core.provenance import command_line, timestamp
from draftgauge.core.templates import environment
from draftgauge.reporting import style

KIT = "draftgauge.reporting"
FORMATS = (style.number, style.percent, style.ratio, style.signed, style.compression_title)
Format = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Format]]
"""Key of a row -> heading and format of its column."""
Facts = tuple[tuple[str, str], ...]


def render_page(template: str, title: str, values: Mapping[str, Any], package: str = KIT) -> str:
    """A page as text; the same values give the same text.

    Args:
        template: it extends ``layout.html.j2``, may import the macros of ``parts.html.j2``, and may call the formats.
        title: of the page.
        values: that it shows.
        package: whose templates come before those of the kit.
    """
    pages = environment(*dict.fromkeys((package, KIT)))
    pages.globals.update({function.__name__: function for function in FORMATS})
    colours = {"light": style.colour_variables(dark=False), "dark": style.colour_variables(dark=True)}
    return pages.get_template(template).render({"title": title} | colours | dict(values))


@dataclass(frozen=True)
class Table:
    """Headings and printed cells; the first column names the line.

    Attributes:
        headings: of the columns.
        lines: each with a cell for every heading.
        numeric: whether a column holds figures, which are set flush right.
        kinds: of the lines: "best" is bold, "bound" is muted.
        caption: above the table; empty for none.
    """

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    kinds: tuple[str, ...]
    caption: str = ""


def table_of(rows: Sequence[Mapping[str, Any]], columns: Columns, caption: str = "") -> Table:
    """Rows as text; columns that no row has are left out, and those of numbers are numeric. ``kind`` of a row is that
    of its line."""
    shown = {key: column for key, column in columns.items() if any(row.get(key) is not None for row in rows)}
    lines = [
        tuple(style.MISSING if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items())
        for row in rows
    ]
    return Table(
        headings=tuple(heading for heading, _ in shown.values()),
        lines=tuple(lines),
        numeric=tuple(any(isinstance(row.get(key), int | float | tuple) for row in rows) for key in shown),
        kinds=tuple(str(row.get("kind", "")) for row in rows),
        caption=caption,
    )


def decimals(count: int) -> Format:
    """A format with ``count`` decimals."""
    return lambda value: style.fixed(value, count)


def named(form: Format, *keys: str) -> dict[str, tuple[str, Format]]:
    """Columns of one format whose headings are their keys in words."""
    return {key: (words(key), form) for key in keys}


def ends(row: Mapping[str, Any], prefix: str, form: Format) -> str | None:
    """``1.41 to 1.62``, from the keys ``low`` and ``high`` behind a prefix; None of a point and where unknown."""
    low, high = row.get(f"{prefix}low"), row.get(f"{prefix}high")
    if low is None or high is None or not abs(high - low) > 1e-9 * abs(high):
        return None
    return f"{form(low)} to {form(high)}"


def words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")


def report_facts(command: str | None = None) -> Facts:
    """About the page itself; the running command if none is given."""
    return (("report made by", command_line() if command is None else command), ("report made", timestamp()))


def facts_of(facts: Mapping[str, Any]) -> Facts:
    """Labels and values as text; what is not known is left out."""
    return tuple((words(label), text) for label, value in facts.items() if (text := _plain(value)))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return "" if value is None else str(value)
