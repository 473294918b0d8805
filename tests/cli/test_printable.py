from __future__ import annotations

import io

import pytest
from rich.segment import Segment, Segments
from rich.table import Table

from draftgauge.cli.console import Output, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("zwölf\t日本\n", "zwölf\t日本\n"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\rb\x07\x9bc\x7f", r"a\rb\x07\x9bc\x7f"),
        ("safe\u202eexe.txt", r"safe\u202eexe.txt"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_printed_carries_sequences_of_others(terminal: bool) -> None:
    stream = io.StringIO()
    output = Output(file=stream, force_terminal=terminal, width=100, color_system="standard" if terminal else None)
    name = "task\x1b]0;title\x07\x1b[2J"
    table = Table("name")
    table.add_row(name, style="red")
    for shown in (name, table, Segments([Segment(name)])):
        output.print(shown, markup=False, highlight=False)
    assert stream.getvalue().count(r"task\x1b]0;titl") == 3
    assert "\x1b]" not in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
    assert ("\x1b[31m" in stream.getvalue()) == terminal  # our own styles stay
