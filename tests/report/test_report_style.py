"""Lines and numbers as charts and tables show them."""

from __future__ import annotations

from draftgauge.reporting.style import p_text, series


def test_a_dozen_lines_are_told_apart() -> None:
    assert len({series(index) for index in range(12)}) == 12


def test_small_p_values_are_bounds() -> None:
    assert (p_text(0.0421), p_text(1e-9)) == ("0.042", "below 0.001")
