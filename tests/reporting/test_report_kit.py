"""Numbers, lines and tables as all pages show them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from draftgauge.reporting.charts import Axes, Line, bar_chart, interval_chart, line_chart
from draftgauge.reporting.layout import (
    decimals,
    ends,
    facts_of,
    fixed,
    number,
    p_text,
    percent,
    ratio,
    series,
    signed,
    table_of,
)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (number(1234.6), "1,235"),
        (number(0.01234), "0.0123"),
        (number(0.0), "0"),
        (number(None), "–"),
        (fixed(3.14159, 2), "3.14"),
        (fixed(float("nan"), 2), "–"),
        (ratio(None), "–"),
        (percent(0.0912), "9.1%"),
        (percent(0.0996), "10%"),
        (percent(float("nan")), "–"),
        (signed(0.06), "+6.0%"),
        (signed(-0.25, 0), "−25%"),
        (signed(-0.00001), "0%"),
        (p_text(0.0421), "0.042"),
        (p_text(1e-9), "below 0.001"),
    ],
)
def test_number_formats(shown, text):
    assert shown == text


def test_a_dozen_lines_are_told_apart():
    assert len({series(index) for index in range(12)}) == 12


def test_a_point_is_no_interval():
    rows = [{"low": 1.75, "high": 1.75}, {"low": 1.75, "high": 1.76}, {"low": None, "high": None}, {}]
    assert [ends(row, "", decimals(2)) for row in rows] == [None, "1.75 to 1.76", None, None]


def test_columns_that_no_row_has_are_left_out():
    rows = [{"name": "a", "speed": 1.25, "kind": "best"}, {"name": "b", "speed": None}]
    table = table_of(rows, {"name": ("name", str), "speed": ("tokens/s", decimals(1)), "live": ("live", str)})
    assert (table.headings, table.lines) == (("name", "tokens/s"), (("a", "1.2"), ("b", "–")))
    assert (table.looks, table.kinds) == (("", "n"), ("best", ""))


def test_facts_that_are_not_known_are_left_out():
    assert facts_of({"gpu": None, "versions": {"torch": "2"}, "cells_left": 3}) == (
        ("versions", "torch 2"),
        ("cells left", "3"),
    )


def test_charts_are_well_formed_and_say_what_they_show():
    line = Line("<a> & b, $/h or $", [1, 2], [0.5, 0.75], [0.4, 0.7], [0.6, 0.8])
    charts = [
        line_chart("one", Axes("x", "accepted"), [line, Line("live", [1], [0.6], [0.5], [0.7], joined=False)]),
        bar_chart("two", "tokens", ["fp16", "int8"], {"fixed": [1.0, 2.0], "best": [1.5, 2.5]}),
        interval_chart("three", "MAT", [("kv", 1.9, 1.8, 2.0), ("none", 1.2, float("nan"), float("nan"))]),
    ]
    for chart in charts:
        ElementTree.fromstring(chart)
        assert "nan" not in chart
    assert "&lt;a&gt; &amp; b, $/h or $: 0.500 to 0.750" in charts[0]
    assert "fixed: 1.00, 2.00" in charts[1]
