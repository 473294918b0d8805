"""What the benchmark scripts share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from draftgauge.core.provenance import command_line, write_measurement

console = Console(stderr=True)
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
Row = Mapping[str, Any]


def arguments(description: str | None, parts: Sequence[str] = ()) -> argparse.Namespace:
    """Parse ``--out``, ``--per-task``, ``--rounds`` and ``--max-new-tokens``, and ``--part`` where there are parts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    parser.add_argument("--per-task", type=int, default=6, help="prompts of each task")
    parser.add_argument("--rounds", type=int, default=3, help="how often every prompt is decoded")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    if parts:
        parser.add_argument("--part", action="append", choices=parts, help="measure this part again; may be repeated")
    return parser.parse_args()


def show_progress(what: str, done: int, total: int) -> None:
    """One line every now and then."""
    if total and done in (total // 4, total // 2, 3 * total // 4, total):
        console.print(f"{what}: {done} of {total}", highlight=False)


def save(out: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows, with a command that names no folder of this machine."""
    out.mkdir(parents=True, exist_ok=True)
    write_measurement(out / name, re.sub(r"[^\s='\"]*/", "", command_line()), rows)
    console.print(f"wrote {out / name}", highlight=False)


def interval(row: Row, key: str = "gain") -> str:
    """A gain with its 95% interval."""
    return f"{row[key]:+.1%} [{100 * row[f'{key}_low']:.1f}, {100 * row[f'{key}_high']:.1f}]"


def matching(rows: Iterable[Row], key: Row) -> Iterator[Row]:
    """The rows that have these values."""
    return (row for row in rows if all(row.get(name) == value for name, value in key.items()))
