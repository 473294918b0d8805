"""Cells of tables: an estimate with its interval, and of a single prompt without one."""

from __future__ import annotations

from draftgauge.cli.console import joined_interval

ROW = {"gain": 0.0312, "gain_low": -0.01, "gain_high": 0.0725, "prompts": 12}


def test_an_estimate_stands_with_its_interval() -> None:
    assert joined_interval(ROW, "gain", "{:+.1%}") == {"gain": "+3.1% [-1.0%, +7.2%]"}
    assert joined_interval(ROW | {"prompts": 1}, "gain", "{:+.1%}") == {"gain": "+3.1%"}
    assert joined_interval({"gain": None}, "gain") == {}
