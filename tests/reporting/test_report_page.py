"""The HTML file: complete, self-contained, escaped; its numbers, lines and tables."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from command_line import succeeds
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.provenance import read_measurement
from draftgauge.core.table import speed
from draftgauge.judging.evaluate import evaluate
from draftgauge.judging.replay import plain_replay, replay
from draftgauge.policies import make_policy
from draftgauge.reporting.charts import Axes, Line, bar_chart, interval_chart, line_chart
from draftgauge.reporting.layout import (
    COLOURS,
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
from draftgauge.reporting.page import _task_speed
from draftgauge.traces.costs import CostCurve, Measurement
from draftgauge.traces.run import COSTS_NAME, read_trace

RANKED = Path(__file__).parents[2] / "docs" / "results" / "rank-qwen.json"
FETCHING = ("src", "href", "xlink:href", "srcset", "action", "data", "poster", "background")


@dataclass
class Page(HTMLParser):
    """What a browser would see: tags, attributes, table cells."""

    html: str
    tags: Counter = field(default_factory=Counter)
    attributes: list[tuple[str, str]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    _in_cell: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data

    @property
    def ids(self) -> list[str]:
        return [value for name, value in self.attributes if name == "id"]


@pytest.fixture(scope="module")
def bench(live_row) -> list[dict]:
    figures = {"tokens_per_step": None, "tokens_per_second": 160.0}
    figures |= {"ratio_to_plain_low": 1.41, "ratio_to_plain_high": 1.62}
    names = ("plain", "fixed:2", "hf-heuristic", "transformers-assisted", "<b>mine</b>")
    return [live_row(name, task=task, **figures) for name in names for task in ("all", "code", "math")]


@pytest.fixture(scope="module")
def html(runs, bench, tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report(runs[0].parent, out, bench) == out
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_every_section_is_there(page, html):
    assert {"advice", "acceptance", "speed", "cost", "policies", "made"} <= set(page.ids)
    assert {("href", place) for place in ("#advice", "#speed", "#made")} <= set(page.attributes)
    assert page.tags["svg"] == 2 * (1 + 3 + 1)  # acceptance, speed of all and two tasks, cost: per compression
    assert html.count("Draft with ") == 2  # a verdict a compression
    assert "Speculative decoding of target with draft on" in html
    assert len(html) < 500_000


def test_nothing_is_fetched(page, html):
    assert not re.search(r"https?://", html)
    assert "@import" not in html
    assert not set(page.tags) & {"script", "link", "iframe", "img", "object", "embed"}
    assert all(value.startswith("#") for name, value in page.attributes if name in FETCHING)
    assert set(re.findall(r"url\((.)", html)) <= {"#"}


def test_ids_are_unique_and_references_lead_somewhere(page, html):
    assert not [name for name, count in Counter(page.ids).items() if count > 1]
    references = re.findall(r'(?:href="#|url\(#)([^")]+)', html)
    assert references
    assert set(references) <= set(page.ids)


def test_charts_follow_the_colours_of_the_page(html):
    charts = re.findall(r"<svg viewBox.*?</svg>", html, flags=re.DOTALL)
    used = set()
    for chart in charts:
        ElementTree.fromstring(chart.replace("xlink:href", "href"))  # well-formed
        used |= set(re.findall(r"var\(--(\w+)\)", chart))
    assert used <= set(COLOURS)
    named = {colour for both in COLOURS.values() for colour in both}
    body = html[html.index("<body>") :]
    assert not named & set(re.findall(r"#[0-9a-f]{6}", body))
    assert "prefers-color-scheme: dark" in html


@pytest.mark.parametrize("number", [0, 1])
def test_the_tables_hold_the_figures_of_replay(page, runs, number):
    trace, costs = read_trace(runs[number]), CostCurve.load(runs[number] / COSTS_NAME)
    outcome = replay(trace, make_policy("cumulative-confidence", trace.gamma_max), costs)
    cells = [row for row in page.rows if row[0] == "cumulative-confidence" and "×" in row[1]]
    assert len(cells) == 2 * 3  # all tasks and each of two, for two compressions
    pooled = cells[3 * number]
    assert pooled[1] == f"{plain_replay(trace, costs).seconds.sum() / outcome.seconds.sum():.2f}×"
    columns = (4, 5) if number == 0 else (2, 3)  # live columns are only where something was measured
    assert pooled[columns[0]] == f"{outcome.tokens_per_step:.3f}"
    assert pooled[columns[1]] == speed(outcome.tokens_per_second)


def test_tokens_a_second_stand_beside_every_ratio_of_the_advice(html, runs):
    for run in runs:
        plain = plain_replay(read_trace(run), CostCurve.load(run / COSTS_NAME)).tokens_per_second
        assert f"tokens/s, modelled; plain {speed(plain)}<" in html
    for faster, shown in ((150.0, "150"), (80.0, "100")):  # of plain decoding at 100
        fixed = [{"tokens_per_second": of, "ratio_to_plain": of / 100} for of in (90.0, faster)]
        assert _task_speed(fixed) == shown


def test_live_figures_stand_beside_modelled_ones(page):
    row = next(row for row in page.rows if row[0] == "fixed:2" and "1.41 to 1.62" in row)
    assert row[2:4] == ["1.50×", "1.41 to 1.62"]
    assert row[6:9] == ["160", "0", "0"]
    baseline = next(row for row in page.rows if row[0] == "transformers-assisted")
    assert (baseline[1], baseline[4:6]) == ("–", ["–", "–"])
    assert any(row[0] == "<b>mine</b>" for row in page.rows)


def test_the_heat_map_holds_gains_where_enough_prompts_tell(page, html, runs):
    trace, costs = read_trace(runs[0]), CostCurve.load(runs[0] / COSTS_NAME)
    rows = evaluate(trace, costs, {"stopping": make_policy("stopping", trace.gamma_max, costs)})
    (judged,) = (row for row in rows if row["task"] == "all")
    assert ["policy", "all tasks9 prompts"] in page.rows  # code and math have 5 and 4
    assert ["stopping", signed(judged["gain"])] in page.rows
    assert "fewer than 8 prompts" in html
    shaded = re.findall(r'title="95%: ([^"]*) to ([^"]*)"( style="[^"]*)?', html)
    assert shaded
    for low, high, style in shaded:
        assert bool(style) == (low[0] == high[0] and low[0] in "+−")


def test_ranked_drafters_stand_beside_each_other(single_run, tmp_path):
    rows = [dict(row) for row in read_measurement(RANKED).rows]
    rows += [{"drafter": "<i>broken</i>", "error": "no such folder"}]
    rows[0] |= {"weights_mib": 942.5, "cost_doubt": "a busy machine"}
    html = write_report(single_run, tmp_path / "report.html", ranked=rows).read_text(encoding="utf-8")
    page = Page(html)
    lines = [row for row in page.rows if row[0] == "Qwen2.5-Coder-0.5B"]
    assert lines[0][1:5] == ["two-source", "13.3", "12.1 to 15.0", "2.44×"]
    assert lines[0][-1] == "942.5"
    assert next(row for row in page.rows if row[:2] == ["lookup", "two-source"])[5] == "−24.2%"
    assert lines[0][7:9] == ["+32.0%", "+24.0% to +39.5%"]
    assert any(row[:2] == ["code, 12", "no-draft"] for row in page.rows)
    assert "a busy machine" in html
    assert "&lt;i&gt;broken&lt;/i&gt;" in html
    assert "accepted, given all before, %" in html
    for wrong in ([{"drafter": "x", "rank": 1}], [{"drafter": "x", "error": "y"}]):
        with pytest.raises(DraftgaugeError, match="use the JSON of `draftgauge rank`"):
            write_report(single_run, tmp_path / "other.html", ranked=wrong)
    out, among_others = tmp_path / "ranked.html", RANKED.parent / "trained-smollm2.json"
    succeeds("report", single_run, "--rank", among_others, "--out", out)
    assert "drafters/smollm-kv" in out.read_text()


def test_a_live_row_of_a_fitted_policy_needs_no_file(single_run, live_row, tmp_path):
    live = [live_row("elsewhere/mine.json", compression="bf16")]
    html = write_report(single_run, tmp_path / "report.html", live).read_text(encoding="utf-8")
    assert "a fitted policy, whose file is not here" in html
    assert any(row[0] == "mine" for row in Page(html).rows)


def test_the_band_of_a_step_is_that_of_its_measurement(single_run, tmp_path):
    costs = CostCurve.load(single_run / COSTS_NAME)
    run = shutil.copytree(single_run, tmp_path / "run")
    replace(costs, measured=Measurement(10.0, (9, 9), 0.125)).save(run / COSTS_NAME)
    known, unknown = (write_report(folder, tmp_path / "r.html").read_text() for folder in (run, single_run))
    assert "known to within 12%" in known
    assert "without an interval" in unknown
    assert "step of n, context 128" in known


def test_one_run_without_measurements(single_run, tmp_path):
    html = write_report(single_run, tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert "live tokens/s" not in html
    assert "task by task" not in html
    assert page.rows
    assert "Not known yet: 1 of at least 8 prompts" in html


def test_what_runs_share_is_told_once(html):
    shared, *own = html[html.index('id="made"') :].split("<details>")
    assert shared.count("<dt>drafter</dt>") == 1
    assert [part.count("<dt>target</dt>") for part in (shared, *own)] == [0, 1, 1]
    assert "compression int8" in own[1]


def test_a_place_that_cannot_be_written_is_named(single_run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DraftgaugeError, match="file is a file where a folder is needed"):
        write_report(single_run, tmp_path / "file" / "report.html")


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
