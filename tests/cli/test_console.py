"""Cells of tables: an estimate with its interval, and of a single prompt without one."""

from __future__ import annotations

import warnings

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
    assert joined_interval(ROW, "gain", "{:+.1%}") == {"gain": "+3.1% [-1.0%, +7.2%]"}
    assert joined_interval(ROW | {"prompts": 1}, "gain", "{:+.1%}") == {"gain": "+3.1%"}
    assert joined_interval({"gain": None}, "gain") == {}


@pytest.mark.parametrize("width", [132, 60])
def test_no_cell_of_a_table_is_cut_short(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "console", Console(width=width))
    policies = ["transformers-assisted", "transformers-assisted-constant"]
    intervals = {f"x{number}": f"{number}00.25 [-{number}00.5%, +{number}17.5%]" for number in range(1, 6)}
    show_table(
        "", [{"policy": name} | intervals for name in policies], {"policy": "policy"} | {x: x for x in intervals}
    )
    shown = capsys.readouterr().out
    assert "…" not in shown
    whole = {cell for line in shown.splitlines() for cell in line.split()}
    assert (width < 132) or whole.issuperset(policies)


def test_an_interrupt_says_how_to_go_on_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_errors("Run it again [to go on].") as outcome:
        raise KeyboardInterrupt
    assert outcome.code == EXIT_INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted. Run it again [to go on].\n"


def test_a_warning_is_one_line_without_a_place_in_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_warnings():
        warnings.warn("a shard is recorded [again]", stacklevel=1)
    assert capsys.readouterr().err == "warning: a shard is recorded [again]\n"


def test_a_full_disk_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with friendly_errors() as outcome:
        raise OSError(28, "No space left on device", "runs/x/positions.parquet")
    assert outcome.code == EXIT_USAGE
    assert capsys.readouterr().err == "error: runs/x/positions.parquet: No space left on device\n"
