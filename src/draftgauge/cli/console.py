"""What every verb shares: the console, progress bars, errors turned into exit codes, JSON files."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, Any, cast

from rich import box
from rich import progress as bars
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from draftgauge.core.errors import DraftgaugeError, missing_library
from draftgauge.core.progress import Progress

# Control characters but tab and line ends, and those that turn the direction of text.
_UNSAFE = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape", "backslashreplace").decode(), text)


class Output(Console):
    """A stream for people; ``wide`` tables have every column, however narrow the terminal."""

    wide = False
    spelled: Mapping[str, str] = MappingProxyType({})  # options of the verb that runs, by their names in Python

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # A terminal would obey control characters in prompts and file names: they are shown escaped.
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class StandardOutput:
    """``sys.stdout`` that a command outlives: ``head`` stops reading, a disk is full, and other files are yet to be
    written. ``failed`` is what else than a closed pipe went wrong.
    """

    failed: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stdout, name)

    def write(self, text: str) -> int:
        return self._try(sys.stdout.write, text) or len(text)

    def flush(self) -> None:
        self._try(sys.stdout.flush)

    def _try(self, act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return act(*arguments)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failed = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in its buffer
            return None


# Into a file or a pipe tables may be wide; 80 columns would cut their headings.
# No emoji codes: a policy such as fixed:-1: is shown as it was written.
standard_output = StandardOutput()
console = Output(file=cast(IO[str], standard_output), emoji=False, width=None if Console().is_terminal else 132)
errors = Output(stderr=True, emoji=False)
EXIT_INCOMPLETE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
AGAIN = 2.0  # seconds in which further presses of Ctrl-C count as one
FIRST, SILENCE = 5.0, 30.0  # seconds without a line of progress where no bar is seen, at first and then
GAP, EDGES = 3, -1  # characters behind every column of a table; the last has 2 and not 3
SHARES = ("captured", "agreement", "first_accepted", "acceptance_rate", "cost_ratio", "hindsight_gain")
GAINS = ("gain", "gain_over_rival", "gain_over_lookup")
INTERVAL = "[95%]"  # ends the heading of a column of estimates with their intervals
FOLDED = 18  # width that a name such as a policy with its parameters, or prose, keeps where it must be folded
SOURCES = {"source_model": "drafter/step", "source_text": "text/step", "distinct_4grams": "distinct 4-grams"}


class IncompleteError(Exception):
    """What could be measured was, and the rest was said to have failed: its rows are kept, and the exit code is 1."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


@dataclass
class Outcome:
    """How a command ended."""

    code: int = 0


@contextmanager
def friendly_errors(resume: str = "") -> Iterator[Outcome]:
    """Turn errors that users can put right into one message and exit code 2, Ctrl-C into 130 and how to go on."""
    outcome = Outcome()
    standard_output.failed = None
    try:
        yield outcome
        if standard_output.failed is not None:
            raise OSError(standard_output.failed.errno, standard_output.failed.strerror, "standard output")
    except BaseException as error:
        outcome.code = EXIT_USAGE
        if _by_interrupt(error):
            errors.print(f"[yellow]interrupted.[/] {escaped(resume)}", soft_wrap=True, highlight=False)
            outcome.code = EXIT_INTERRUPTED
        elif isinstance(error, DraftgaugeError):
            fail(str(error))
        elif isinstance(error, ModuleNotFoundError) and (missing := missing_library(error.name)):
            fail(str(missing))
        elif isinstance(error, OSError):
            fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
        else:
            raise


def _by_interrupt(error: BaseException | None) -> bool:
    # Libraries interrupted while they import or write raise errors of their own.
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def interruptible(process_ends: bool = False) -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt, so that what is open is closed. Pressed again at once, they do not
    break off the closing, nor the process's end if that follows."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -AGAIN

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        since, last = time.monotonic() - last, time.monotonic()
        if since >= AGAIN:
            raise KeyboardInterrupt

    def unraisable(ignored: Any) -> None:
        """An interrupt that came while an object was finalised, which ignores it, comes again a moment later."""
        nonlocal last
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            usual(ignored)
            return
        last = -AGAIN
        later = threading.Timer(0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))  # ends a wait too
        later.daemon = True
        later.start()

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    usual, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        sys.unraisablehook = usual
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if process_ends else handler)


def say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def fail(message: str) -> None:
    errors.print(f"[bold red]error:[/] {escaped(_with_options(message))}", soft_wrap=True, highlight=False)


def warn(message: str) -> None:
    errors.print(f"[yellow]warning:[/] {escaped(_with_options(message))}", soft_wrap=True, highlight=False)


def _with_options(message: str) -> str:
    """Settings named as the command line does; what could be another word only where a message begins with it."""
    name = r"^\w+(?= must | takes )|(?<![\w./'\"-])[a-z]+_[a-z_]+(?![\w/'\"-]|\.\w)"
    return re.sub(name, lambda match: errors.spelled.get(match[0], match[0]), message)


class _Notes(logging.Handler):
    """Shows what the package logs, each line once a command."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in self.said:
            self.said.add(text)
            errors.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def friendly_warnings() -> Iterator[None]:
    """Show warnings that speak to users, and what the package logs, without the place in the code that they come from.

    Where Matplotlib keeps its caches, and that it makes them, is nothing to who asked for a page.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    own, notes = logging.getLogger("draftgauge"), _Notes()
    own.setLevel(logging.INFO)
    own.addHandler(notes)
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **further: Any) -> None:
            if issubclass(category, UserWarning):
                warn(str(message))
            else:
                usual(message, category, *where, **further)

        warnings.showwarning = show
        try:
            yield
        finally:
            own.removeHandler(notes)


def escaped(text: str) -> str:
    return printable(text).replace("[", r"\[")


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display; the callback takes (what, done, total) and opens a bar for every new ``what``.

    Into a file or a pipe a line is written every :data:`SILENCE` seconds, as what takes hours must not look dead.
    """
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    display = bars.Progress(*columns, console=errors, transient=not errors.is_terminal)
    tasks: dict[str, Any] = {}
    written, shown = time.monotonic() + FIRST - SILENCE, ""

    def advance(what: str, done: int, total: int) -> None:
        nonlocal written, shown
        last = done == total and what == shown
        if not errors.is_terminal and (last or time.monotonic() - written >= SILENCE):
            errors.print(f"{what}: {done} of {total}", highlight=False)
            written, shown = time.monotonic(), "" if last else what
        if what not in tasks:
            display.start()  # not before there is something to show: an error may come first
            tasks[what] = display.add_task(what, total=total)
        display.update(tasks[what], completed=done, total=total)
        if display.finished:  # what is printed next, such as a streamed answer, must not be overwritten
            display.stop()
            for task in tasks.values():
                display.remove_task(task)
            tasks.clear()

    try:
        yield advance
    finally:
        if tasks:
            display.stop()


def save_json(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of a measuring verb where ``--json`` asked for them."""
    if path is None:
        return
    from draftgauge.core.provenance import command_line, write_measurement  # NumPy, which the help need not wait for

    path.parent.mkdir(parents=True, exist_ok=True)
    write_measurement(path, command_line(), rows)
    errors.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def by_target(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> dict[str, str]:
    """Columns of rows, more where tokens were looked up, and one of the target, or the run, where there are several."""
    columns = dict(columns) | (SOURCES if any(row.get("source_text") for row in rows) else {})
    if len({label(row) for row in rows}) < 2:
        return columns
    return {"run" if any("run" in row for row in rows) else "compression": "target"} | columns


def named(*keys: str) -> dict[str, str]:
    """Columns whose headings are their keys in words."""
    return {key: key.replace("_", " ") for key in keys}


def label(row: Mapping[str, Any]) -> str:
    """What a row is about: its run where there are several, else its target's compression."""
    return str(row.get("run") or row["compression"])


def show_verdicts(rows: Iterable[Mapping[str, Any]]) -> None:
    for row in rows:
        if row.get("verdict"):
            say(f"{label(row)}: {row['verdict']}")


def show_table(title: str, rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows; ``columns`` maps keys to headings, the ones that matter most first. Missing or empty values are left
    blank, and columns of nothing else left out. Under a heading that ends in "[95%]" intervals stand behind the
    figures: from ``KEY_low`` to ``KEY_high``.

    Figures are never broken. Columns that do not fit on a terminal are named below the table, and shown with
    ``--wide``. Into a file or a pipe lines are as long as they have to be.
    """
    so_far = {"recommended": "so far"}  # in place of a yes that the verdict takes back
    shown = [row if not str(row.get("verdict")).startswith("Not known yet") else {**row, **so_far} for row in rows]
    usual, narrow = console.width, console.is_terminal and not console.wide
    hidden: list[str] = []
    fitting: dict[str, tuple[str, list[str], int]] = {}  # key -> heading, cells, least width
    width = EDGES
    for key, heading in columns.items():
        column = _cells(key, heading, shown)
        if shown and not any(column):
            continue
        least = max(map(cell_len, (*column, *heading.split())), default=1)
        if narrow and (not fitting or any(" [" not in cell and cell.count(" ") > 1 for cell in column)):
            least = min(least, FOLDED)  # names and prose may take several lines, figures and intervals not
        if narrow and (hidden or width + least + GAP > usual):
            hidden.append(heading)
            continue
        width += least + GAP
        fitting[key] = heading, column, least
    table, spare = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False), max(0, usual - width)
    for key, (heading, column, least) in fitting.items():
        longest = max(map(cell_len, (*column, heading)))
        given = min(longest, least + spare) if narrow else longest
        spare -= given - least
        figures = all(isinstance(row.get(key), int | float | None) for row in shown)
        table.add_column(heading, justify="right" if figures else "left", overflow="fold", width=given)
    for line in zip(*(column for _, column, _ in fitting.values()), strict=True):
        table.add_row(*map(escaped, line))
    console.print(f"\n[bold]{escaped(title)}[/]" if title else "", soft_wrap=True, highlight=False)
    try:
        console.width = usual if narrow else 10_000
        console.print(table)
    finally:
        console.width = usual
    if hidden:
        console.print(f"Not shown at this width: {', '.join(hidden)} (--wide shows them)", highlight=False)


def _cells(key: str, heading: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    form = _format(key, [row.get(key) for row in rows])
    if not heading.endswith(INTERVAL):
        return [form(row.get(key)) for row in rows]
    return [form(row.get(key)) + _interval(row, key, form) for row in rows]


def _interval(row: Mapping[str, Any], key: str, form: Callable[[Any], str]) -> str:
    """``" [1.20, 1.41]"``; nothing of a single prompt or conversation."""
    low, high = (row.get(f"{key}_{end}") for end in ("low", "high"))
    if row.get(key) is None or row.get("prompts") == 1 or low is None or low != low:
        return ""
    return f" [{form(low).strip('+%')}, {form(high).strip('+%')}]"


def _format(key: str, values: Iterable[Any]) -> Callable[[Any], str]:
    """One format a column: shares as percentages, three digits of the largest figure, millions as 7.3M."""
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    largest = max(map(abs, numbers), default=0)
    if key in SHARES + GAINS:
        form = "{:+.1%}" if key in GAINS else "{:.1%}"
    elif key.startswith("p_"):
        form = "{:.4f}"
    elif any(isinstance(value, float) for value in numbers):
        form = f"{{:,.{max(0, 2 - math.floor(math.log10(largest or 1)))}f}}"
    else:
        form = "{}"
    millions = form == "{}" and largest >= 1e6

    def shown(value: Any) -> str:
        if value is None or value != value:
            return ""
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        return f"{value / 1e6:.1f}M" if millions else form.format(value)

    return shown
