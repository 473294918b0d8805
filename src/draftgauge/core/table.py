"""What verbs return: rows as plain dicts, which a notebook shows as a table; speeds as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from shutil import get_terminal_size
from typing import Any

from draftgauge.core.errors import MissingLibraryError

LEADING = ("policy", "drafter", "ratio_to_plain", "gain", "tokens_per_second", "tokens_per_step")


class Rows(list[dict[str, Any]]):
    """A list of dicts, one a row."""

    @property
    def verdict(self) -> str:
        """The recommendation, a line for each run; empty where the rows hold none (``replay`` has one)."""
        return "\n".join(str(row["verdict"]) for row in self if row.get("verdict"))

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with a column for every key.

        Raises:
            MissingLibraryError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingLibraryError("rows become a DataFrame by pandas: pip install pandas") from error
        return pandas.DataFrame(list(self))

    def _shown(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Rows of all tasks together, and the columns that say something of them."""
        shown = [row for row in self if row.get("task", "all") == "all"] or list(self)
        every = dict.fromkeys(key for row in shown for key in row)
        return shown, [key for key in every if _says_something(shown, key)]

    def __str__(self) -> str:
        """A table of what fits into a terminal, without what is the same in every row; what to do; and the verdict."""
        shown, every = self._shown()
        lines, room = [""] * (len(shown) + 1), get_terminal_size().columns
        for key in dict.fromkeys(key for key in (*LEADING, *every) if key in every):
            cells = [key.replace("_", " "), *(_cell(row, key) for row in shown)]
            width = max(map(len, cells)) + 2
            if len({*cells}) > 2 or len(shown) == 1 or not lines[0]:
                room -= width
                lines = [line + cell.ljust(width) for line, cell in zip(lines, cells, strict=True) if room > 0] or lines
        remedies = [f"{row['check']}: {row['what']}\n  do: {row['remedy']}" for row in self if row.get("remedy")]
        return "\n".join([*map(str.rstrip, lines), *remedies, *filter(None, [self.verdict])])

    def _repr_html_(self) -> str:
        shown, keys = self._shown()
        head = "".join(f"<th>{escape(key.replace('_', ' '))}</th>" for key in keys)
        lines = ("".join(f"<td>{escape(_cell(row, key))}</td>" for key in keys) for row in shown)
        verdict = f"<p><b>{escape(self.verdict)}</b></p>" if self.verdict else ""
        return f"{verdict}<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _says_something(rows: list[dict[str, Any]], key: str) -> bool:
    """Verdicts stand above the table, the ends of intervals beside their estimates."""
    inner = key.endswith(("_low", "_high")) and any(key.rpartition("_")[0] in row for row in rows)
    return key != "verdict" and not inner and any(_known(row.get(key)) for row in rows)


def _known(value: Any) -> bool:
    """Whether it is there: intervals of a single prompt are NaN."""
    return value is not None and value == value


def _cell(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if not _known(value):
        return ""
    if not isinstance(value, float):
        return str(value)
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return f"{value:.3g}" if not (_known(low) and _known(high)) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def speed(tokens_per_second: float) -> str:
    """Three digits, e.g. ``0.834``, ``3.42``, ``34.1``; whole tokens from 100 on."""
    return f"{tokens_per_second:,.0f}" if tokens_per_second >= 99.95 else f"{tokens_per_second:#.3g}"
