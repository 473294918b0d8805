"""A printed table: headings and cells as text, made from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.reporting.style import MISSING

Format = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Format]]
"""Key of a row -> heading and format of its column."""


@dataclass(frozen=True)
class Table:
    """Headings and printed cells; the first column names the line.

    Attributes:
        headings: of the columns.
        lines: each with a cell for every heading.
        numeric: whether a column holds figures, which are set flush right.
        caption: above the table; empty for none.
        dense: with less room between columns, for wide tables.
    """

    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    caption: str = ""
    dense: bool = False

    def __post_init__(self) -> None:
        assert all(len(line) == len(self.headings) == len(self.numeric) for line in self.lines)


def table_of(rows: Sequence[Mapping[str, Any]], columns: Columns, caption: str = "") -> Table:
    """Rows as text; columns that no row has are left out, and those of numbers are numeric."""
    shown = {key: column for key, column in columns.items() if any(row.get(key) is not None for row in rows)}
    return Table(
        headings=tuple(heading for heading, _ in shown.values()),
        lines=tuple(
            tuple(MISSING if row.get(key) is None else form(row[key]) for key, (_, form) in shown.items())
            for row in rows
        ),
        numeric=tuple(any(isinstance(row.get(key), int | float) for row in rows) for key in shown),
        caption=caption,
    )


def decimals(count: int) -> Format:
    """A format with ``count`` decimals."""
    return lambda value: f"{value:,.{count}f}"


def words(name: str) -> str:
    """A key as words."""
    return name.replace("_", " ")
