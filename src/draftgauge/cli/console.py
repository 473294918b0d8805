"""What every verb shares: the console, progress bars, errors turned into exit codes, JSON files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import command_line, write_measurement

# Into a file or a pipe tables may be wide; 80 columns would cut their headings.
console = Console() if Console().is_terminal else Console(width=132)
errors = Console(stderr=True)
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

Advance = Callable[[str, int, int], None]


@contextmanager
def friendly_errors(resume: str = "") -> Iterator[None]:
    """Turn the errors that users can put right into one message and exit code 2; Ctrl-C into 130 with how to go on."""
    try:
        yield
    except DraftgaugeError as error:
        errors.print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(EXIT_USAGE) from error
    except KeyboardInterrupt as error:
        errors.print(f"[yellow]interrupted.[/] {_escaped(resume)}", soft_wrap=True, highlight=False)
        raise typer.Exit(EXIT_INTERRUPTED) from error


def warn(message: str) -> None:
    """Say what makes a result other than it seems, and go on."""
    errors.print(f"[yellow]warning:[/] {_escaped(message)}", soft_wrap=True, highlight=False)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")


@contextmanager
def progress() -> Iterator[Advance]:
    """A progress display; the callback takes (what, done, total) and opens a bar for every new ``what``."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=not errors.is_terminal) as bars:
        known: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in known:
                known[what] = bars.add_task(what, total=total)
            bars.update(known[what], completed=done, total=total)

        yield advance


def save_json(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of a measuring verb where ``--json`` asked for them."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_measurement(path, command_line(), rows)
    errors.print(f"wrote {path}", highlight=False)


def show_table(title: str, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows; ``columns`` maps keys to headings, and missing or empty values are left blank."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    found = list(rows)
    for key, heading in columns.items():
        numeric = all(isinstance(row.get(key), int | float | None) for row in found)
        table.add_column(heading, justify="right" if numeric else "left")
    for row in found:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}"
    return _escaped(str(value))
