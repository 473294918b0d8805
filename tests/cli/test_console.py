"""Cells of tables, streamed text, and help on a terminal of 80 columns."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table

from command_line import draftgauge
from draftgauge import __main__
from draftgauge.cli import advise, bench, console, profile, rank, train
from draftgauge.cli.console import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    Output,
    friendly_errors,
    friendly_warnings,
    printable,
    show_table,
)
from draftgauge.core.provenance import read_measurement
from forked import fork
from tiny import save_noisy, save_tiny

ROW = {"gain": 0.0312, "gain_low": -0.01, "gain_high": 0.0725, "mat": 2.5, "mat_low": 2.25, "mat_high": 2.75}


def test_an_estimate_stands_with_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    show_table("", [ROW, ROW | {"prompts": 1}, {"gain": None}], {"gain": "gain [95%]", "mat": "MAT [95%]"})
    show_table("", [{"recommended": True, "verdict": "Not known yet: ..."}], {"recommended": "advised"})
    whole, alone, missing, *_, advised, _ = capsys.readouterr().out.splitlines()[4:]
    assert whole.split("   ") == [" +3.1% [-1.0, 7.2]", "2.50 [2.25, 2.75] "]
    assert (alone.split(), missing.split(), advised.strip()) == (["+3.1%", "2.50"], [], "so far")


@pytest.mark.parametrize(
    ("key", "values", "shown"),
    [
        ("x", [3.14159, 12.0, 0], ["3.1", "12.0", "0.0"]),
        ("x", [0.5, 0.01234], ["0.500", "0.012"]),
        ("x", [1234.6, 7.0], ["1,235", "7"]),
        ("p_holm", [1.0, 0.0002], ["1.0000", "0.0002"]),
        ("parameters", [7_340_032, 250_000], ["7.3M", "0.2M"]),
        ("prompts", [48, 7], ["48", "7"]),
        ("x", [float("nan"), float("inf"), 2.5], ["", "inf", "2.50"]),
    ],
)
def test_a_column_has_one_format(
    key: str, values: list[float], shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show_table("", [{"name": "of", key: value} for value in values], {"name": "name", key: key})
    assert [line.partition("of")[2].strip() for line in capsys.readouterr().out.splitlines()[4:-1]] == shown


RESULTS = Path(__file__).parents[2] / "docs" / "results"
LIVE, RANKED = RESULTS / "real-live-bf16.json", RESULTS / "rank-qwen.json"
AN_HOUR = {"task": "summarization", "prompts": 168, "mean_accepted": 4.4, "first_accepted": 0.9, "best_fixed_gamma": 12}
DEPTH = {"depth": 6, "alpha": 0.812, "alpha_low": 0.798, "alpha_high": 0.83, "agreement": 0.7, "survival": 0.25}
DRAFTER = {"mat": 2.5, "mat_low": 2.25, "mat_high": 2.75, "live_mat": 2.4, "draft_ms": 11.5, "retention": 0.7}
RATIO = {"ratio_to_plain": 12.3, "ratio_to_plain_low": 11.9, "ratio_to_plain_high": 13.1}
ADVISED = {"policy": "cumulative-confidence", **RATIO, "tokens_per_step": 6.6}


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (bench.COLUMNS, read_measurement(LIVE).rows),
        (rank.COLUMNS, [rank._shown(row) for row in read_measurement(RANKED).rows]),
        (profile.COLUMNS, [AN_HOUR]),
        (advise.COLUMNS, [ADVISED | {"acceptance_rate": 0.87, "pays_below": 13.25}]),
        (train.WHOLE, [DRAFTER | {"tokens_per_second": 34.5, "ratio_to_plain": 1.25}]),
        (train.BY_DEPTH, [DEPTH]),
    ],
)
def test_the_columns_that_matter_fit_80_and_wide_shows_all(
    columns: dict[str, str], rows: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(console, "console", Output(width=80, force_terminal=True, color_system=None))
    show_table("", rows, columns)
    table, _, hidden = capsys.readouterr().out.partition("Not shown at this width: ")
    assert max(map(len, table.splitlines())) <= 80
    assert not {*hidden.replace("\n", " ").partition(" (--")[0].split(", ")}.intersection([*columns.values()][:5])
    monkeypatch.setattr(console.console, "wide", True)
    show_table("", rows, columns)
    shown = capsys.readouterr().out
    filled = {key for row in rows for key, value in row.items() if value not in (None, "")}
    assert all(heading in shown.splitlines()[2] for key, heading in columns.items() if key in filled)
    assert "Not shown" not in shown


def test_progress_shows_in_a_file_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(console, "errors", Console(stderr=True, force_terminal=False))
    with console.progress() as advance:
        for done in range(7):
            advance("cells", done, 6)
            now[0] += 12.0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("cells: ")]
    assert lines == ["cells: 1 of 6", "cells: 4 of 6", "cells: 6 of 6"]


POLICIES = ["lookup:least=2,tokens=4", "sglang-adaptive:candidates=1,3,7,start=3,smoothing=0.05,up=0.0,down=0.1"]
INTERVALS = {f"x{number}": f"{number}00.25 [-{number}00.5%, +{number}17.5%]" for number in range(1, 6)}
FIGURES = {"tokens_per_second": 1234.5, "gain": -0.0574}


def shown_table(width: int, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(console, "console", Output(width=width, force_terminal=terminal, color_system=None))
    keys = ("policy", *INTERVALS, *FIGURES)
    show_table("", [{"policy": name} | INTERVALS | FIGURES for name in POLICIES], {key: key for key in keys})
    shown = capsys.readouterr().out
    assert "…" not in shown
    return shown


@pytest.mark.parametrize("width", [200, 132, 80, 60])
def test_figures_of_a_table_stay_whole_on_any_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = shown_table(width, True, monkeypatch, capsys)
    table, _, hidden = shown.partition("Not shown at this width: ")
    assert all(len(line) <= width for line in table.splitlines())
    for key, text in (INTERVALS | {"tokens_per_second": "1,234", "gain": "-5.7%"}).items():
        assert table.count(f" {text} ") == (0 if key in hidden.replace("\n", " ") else len(POLICIES))
    assert bool(hidden) == (width < 200)
    names = "".join(line[1:].split("   ")[0].strip() for line in table.splitlines())
    assert names.count(POLICIES[1]) == 1  # of names no letter is lost


def test_lines_of_a_table_are_as_long_as_they_have_to_be_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_table(60, False, monkeypatch, capsys).splitlines()
    for name in POLICIES:
        (line,) = [line for line in lines if name in line]
        assert all(cell in line for cell in (*INTERVALS.values(), "1,234", "-5.7%"))
    assert console.console.width == 60


def test_what_reads_the_output_may_stop_before_its_end() -> None:
    """As ``head`` does; the command goes on, and writes what it was to write."""
    code = (
        "import sys; from draftgauge.cli.console import console\n"
        "for n in range(1500): console.print(f'line {n:070}')\n"
        "print('done', file=sys.stderr)"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"line {0:070}\n", "done\n")


def test_what_is_told_is_one_line_with_its_brackets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_errors("Run it again [to go on].") as outcome:
        raise KeyboardInterrupt
    assert outcome.code == EXIT_INTERRUPTED == 130
    with friendly_warnings():
        warnings.warn("a shard is recorded [again]", stacklevel=1)
    console.save_json(tmp_path / "rows[v2].json", [])
    with friendly_errors() as outcome:
        raise OSError(28, "No space left on device", "runs/x/positions.parquet")
    assert outcome.code == EXIT_USAGE
    assert capsys.readouterr().err.splitlines() == [
        "interrupted. Run it again [to go on].",
        "warning: a shard is recorded [again]",
        f"wrote {tmp_path}/rows[v2].json",
        "error: runs/x/positions.parquet: No space left on device",
    ]


def test_an_import_that_ctrl_c_broke_off_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    with console.friendly_errors("Go on.") as outcome:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ModuleNotFoundError("Could not import module 'PreTrainedModel'")  # noqa: B904
    assert outcome.code == console.EXIT_INTERRUPTED
    assert "interrupted. Go on." in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError), console.friendly_errors():
        raise ModuleNotFoundError("no such thing")


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


def test_help_names_groups_with_an_example_each_and_basic_options_first() -> None:
    said = draftgauge(["--help"]).stdout
    for group in ("Measure", "Decide", "Run", "Train", "Research"):
        assert re.search(rf"{group}: draftgauge [a-z]+ \S", said)
    said = draftgauge(["profile", "--help"]).stdout
    places = [said.index(f"--{option} ") for option in ("out", "target", "drafter", "prompts", "seconds", "top-k")]
    assert max(places[:4]) < min(places[4:])


def begun_anew() -> int:
    for name in [name for name in sys.modules if name.startswith("draftgauge.cli")]:  # which looks where it prints
        del sys.modules[name]
    return __main__.main()


def on_terminal(*words: str, patch: pytest.MonkeyPatch) -> str:
    """What a command writes on a terminal of 80 columns."""
    reading, terminal = pty.openpty()
    patch.setenv("TERM", "xterm-256color")
    patch.setattr(sys, "argv", ["draftgauge", *words])
    process = fork(Path(os.ttyname(terminal)), begun_anew)
    os.close(terminal)
    seen = b""
    with suppress(OSError):  # the other end is closed
        while piece := os.read(reading, 4096):
            seen += piece
    os.close(reading)
    process.join()
    said = seen.decode(errors="replace")
    assert process.exitcode == 0, said
    return said


def test_a_table_shows_the_five_columns_that_matter_and_wide_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    run = str(Path(__file__).parents[2] / "docs" / "results" / "real" / "runs" / "bf16")
    wide = draftgauge(["replay", run, "--policy", "stopping", "--wide"]).stdout
    said = on_terminal("replay", run, "--policy", "stopping", patch=monkeypatch)
    (line,) = [line for line in said.splitlines() if line.startswith(" stopping")]
    assert line.split()[:3] == ["stopping", "yes", "1.96"]
    assert len(re.split(r"   +", line.strip())) >= 5
    assert "Not shown at this width: " in said
    assert "Not shown" not in wide
    assert len(next(line for line in wide.splitlines() if line.startswith(" stopping")).split("   ")) > 5


def test_streamed_text_is_not_overwritten_by_the_meter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path / "target")
    save_noisy(tmp_path / "draft")
    words = ["generate", "abc def", "--policy", "stopping", "--show-drafts", "--max-new-tokens", "12"]
    words += ["--device", "cpu", "--cost-seconds", "0.2"]
    words += ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "draft")]
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "cache"))
    said = on_terminal(*words, patch=monkeypatch)
    assert "cost curve" in said
    bars = [match.end() for match in re.finditer(r"\x1b\[(?:2K|1A)|100/100", said)]
    answer = said[max(bars) :]
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", answer)
    assert re.search(r"12 tokens in \d+ steps?", shown), said
    tokens = re.search(r"accepted from the draft", shown)
    assert tokens is not None
    assert len(shown[: tokens.start()].split("\n", 1)[1].strip()) >= 12  # the text itself, behind the last bar
