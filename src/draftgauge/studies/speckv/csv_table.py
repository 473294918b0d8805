"""A CSV file whose every cell is checked; errors name the file and the line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError


@dataclass(frozen=True)
class Row:
    """One line of a CSV file. Its readers raise :class:`DraftgaugeError` with the file, the line and the column."""

    file: Path
    line: int
    cells: Mapping[str, str]

    def error(self, message: str) -> DraftgaugeError:
        """What is wrong with this row, to be raised."""
        return DraftgaugeError(f"{self.file}, line {self.line}: {message}")

    def choice(self, column: str, choices: Sequence[str]) -> int:
        """Index of a cell among the known names."""
        name = self.cells[column]
        if name not in choices:
            raise self.error(f"unknown {column} {name!r}; known are {', '.join(choices)}")
        return choices.index(name)

    def integer(self, column: str, low: int) -> int:
        """A whole number of at least ``low``."""
        text = self.cells[column]
        try:
            value = int(text)
        except ValueError:
            raise self.error(f"{column} must be a whole number, not {text!r}") from None
        if value < low:
            raise self.error(f"{column} must be at least {low}, not {value}")
        return value

    def number(self, column: str, low: float, high: float = math.inf) -> float:
        """A finite number from ``low`` to ``high``."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{column} must be a number, not {text!r}") from None
        if not (math.isfinite(value) and low <= value <= high):
            wanted = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise self.error(f"{column} must be {wanted}, not {text}")
        return value


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read a CSV file with a heading; columns beyond those asked for are left alone.

    Raises:
        DraftgaugeError: if the file cannot be read, lacks a column or any row, or a row has another number of cells
            than the heading.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(path, csv.reader(file, strict=True), columns))
    except OSError as error:
        raise DraftgaugeError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DraftgaugeError(f"{path} is not text in UTF-8; give a CSV file") from error
    if not rows:
        raise DraftgaugeError(f"{path} has a heading but no rows")
    return rows


def _rows(path: Path, reader: Any, columns: Sequence[str]) -> Iterator[Row]:
    """The rows below the heading; a row's line is the one it ends on, as a quoted cell may hold line breaks."""
    heading: list[str] | None = None
    try:
        for cells in reader:
            if heading is None:
                heading = _heading(path, cells, columns)
            elif len(cells) not in (0, len(heading)):  # blank lines stand at the end of many files
                raise DraftgaugeError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, but the heading has {len(heading)} columns"
                )
            elif cells:
                yield Row(path, reader.line_num, dict(zip(heading, cells, strict=True)))
    except csv.Error as error:
        raise DraftgaugeError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
    if heading is None:
        _heading(path, [], columns)


def _heading(path: Path, cells: list[str], columns: Sequence[str]) -> list[str]:
    missing = [column for column in columns if column not in cells]
    if missing:
        raise DraftgaugeError(f"{path}, line 1: missing column{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return cells
