"""Cells of tables: an estimate with its interval, and of a single prompt without one."""

from __future__ import annotations

import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from draftgauge.cli import console
from draftgauge.cli.console import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    friendly_errors,
    friendly_warnings,
    joined_interval,
    show_table,
)

ROW = {"gain": 0.0312, "gain_low": -0.01, "gain_high": 0.0725, "prompts": 12}


def test_an_estimate_stands_with_its_interval() -> None:
    assert joined_interval(ROW, "gain", "{:+.1%}".format) == {"gain": "+3.1% [-1.0%, +7.2%]"}
    assert joined_interval(ROW | {"prompts": 1}, "gain", "{:+.1%}".format) == {"gain": "+3.1%"}
    assert joined_interval({"gain": None}, "gain") == {}


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
    assert lines == ["cells: 3 of 6", "cells: 6 of 6"]


POLICIES = ["lookup:least=2,tokens=4", "sglang-adaptive:candidates=1,3,7,start=3,smoothing=0.05,up=0.0,down=0.1"]
INTERVALS = {f"x{number}": f"{number}00.25 [-{number}00.5%, +{number}17.5%]" for number in range(1, 6)}
FIGURES = {"tokens_per_second": 1234.5, "gain": -0.0574}


def shown_table(width: int, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(console, "console", Console(width=width, force_terminal=terminal, color_system=None))
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
    for key, text in (INTERVALS | {"tokens_per_second": "1,234", "gain": "-0.0574"}).items():
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
        assert all(cell in line for cell in (*INTERVALS.values(), "1,234", "-0.0574"))
    assert console.console.width == 60


def test_what_reads_the_output_may_stop_before_its_end() -> None:
    """As ``head`` does; the command goes on, and writes what it was to write."""
    code = (
        "import sys; from draftgauge.cli.console import console\n"
        "for n in range(20_000): console.print(f'line {n}')\n"
        "print('done', file=sys.stderr)"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} | head -1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "line 0\n", "done\n")


def test_an_interrupt_says_how_to_go_on_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_errors("Run it again [to go on].") as outcome:
        raise KeyboardInterrupt
    assert outcome.code == EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted. Run it again [to go on].\n"


def test_a_warning_is_one_line_without_a_place_in_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_warnings():
        warnings.warn("a shard is recorded [again]", stacklevel=1)
    assert capsys.readouterr().err == "warning: a shard is recorded [again]\n"


def test_brackets_in_the_name_of_a_file_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    console.save_json(Path("rows[v2].json"), [])
    assert capsys.readouterr().err == "wrote rows[v2].json\n"


def test_a_full_disk_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_errors() as outcome:
        raise OSError(28, "No space left on device", "runs/x/positions.parquet")
    assert outcome.code == EXIT_USAGE
    assert capsys.readouterr().err == "error: runs/x/positions.parquet: No space left on device\n"


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
