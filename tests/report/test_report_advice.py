"""The figures behind the report's advice, and its table cells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftgauge.reporting.advice import advise, contrast, held_out_speedups
from draftgauge.reporting.data import ReportData
from draftgauge.reporting.figures import step_costs
from draftgauge.reporting.style import column_decimals, fixed, number, percent, ratio, signed
from draftgauge.reporting.tables import compression_table, describe, policies_table
from draftgauge.reporting.views import CompressionView, SpeedCurve, TableRow
from draftgauge.traces.costs import CostCurve


def _costs(verify=10e-3, growth=0.1, draft=1e-3, gamma_max=3):
    contexts = (64, 128)
    verifying = ((*(verify * (1 + growth * k) for k in range(gamma_max + 1)),),) * 2
    drafting = ((*(draft * n for n in range(gamma_max + 1)),),) * 2
    return CostCurve(contexts, verifying, drafting, (verify, verify), "none", "cpu", "float32")


def _view(name="int8", speeds=(100.0, 150.0, 210.0, 190.0), costs=None, rows=(), held_out=None, hindsight=275.1):
    steps = tuple(1.0 + 0.7 * g for g in range(len(speeds)))
    curve = SpeedCurve("all", steps, speeds, plain=100.0, hindsight=hindsight, held_out=held_out)
    return CompressionView(name, costs or _costs(), 8, (), (curve,), tuple(rows))


def test_the_advice_holds_length_gain_and_what_is_left():
    head = advise(_view())
    assert (head.name, head.pays, head.gamma, head.speedup) == ("int8", True, 2, 2.1)
    assert head.hindsight_gain == pytest.approx(275.1 / 210 - 1)
    assert head.drafted_cost == pytest.approx(0.1)
    assert head.verify_growth == pytest.approx(1.2)
    assert head.tokens_per_step == pytest.approx(2.4)
    assert (head.measured, head.near_best, head.tasks) == ((), None, ())


def test_the_advice_quotes_live_measurements():
    by_task = [TableRow(task, "fixed:2", live_ratio=value) for task, value in (("code", 2.4), ("chat", 1.8))]
    assert advise(_view(rows=by_task)).measured == (1.8, 2.4)
    pooled = [
        *by_task,
        TableRow("all", "fixed:2", live_ratio=2.05),
        TableRow("all", "fixed:3", live_ratio=9.0),
    ]
    assert advise(_view(rows=pooled)).measured == (2.05,)
    assert advise(_view(rows=[TableRow("all", "fixed:2", modelled_ratio=2.1)])).measured == ()


def test_the_advice_is_against_drafting_that_does_not_pay():
    head = advise(_view("none", speeds=(98.0, 90.0, 80.0, 70.0), hindsight=120.0))
    assert (head.pays, head.gamma, head.speedup, head.hindsight) == (False, 1, 0.9, 1.2)
    assert head.near_best is None


def test_lengths_differ_because_of_costs_only_where_they_follow_them():
    cheap, dear = _costs(growth=0.02, draft=0.5e-3), _costs(growth=0.2, draft=3e-3)
    early, late = (100.0, 200.0, 150.0, 140.0), (100.0, 150.0, 200.0, 250.0)
    assert contrast([_view()]) is None
    follows = contrast([_view("none", early, dear), _view("int8", late, cheap)])
    assert follows.marginal == pytest.approx({"none": 0.5, "int8": 0.07})
    assert (follows.order, follows.cheap, follows.dear, follows.shared) == ("costs", "int8", "none", None)
    assert contrast([_view("none", late, dear), _view("int8", early, cheap)]).order == "mixed"
    assert contrast([_view("none", late, dear), _view("int8", late, cheap)]).order == "same"


def test_a_flat_curve_has_a_range_of_good_lengths():
    flat, steep = (100.0, 208.0, 210.0, 207.0), (100.0, 150.0, 210.0, 160.0)
    assert advise(_view(speeds=flat)).near_best == (1, 3)
    assert advise(_view(speeds=steep)).near_best is None
    cheap, dear = _costs(growth=0.02, draft=0.5e-3), _costs(growth=0.2, draft=3e-3)
    late = (100.0, 150.0, 203.0, 204.0)
    assert contrast([_view("none", steep, dear), _view("int8", late, cheap)]).shared == 2
    late = (100.0, 150.0, 180.0, 204.0)
    assert contrast([_view("none", steep, dear), _view("int8", late, cheap)]).shared is None


def test_tasks_may_differ_where_the_best_length_over_all_does_not():
    cheap, dear = _costs(growth=0.02, draft=0.5e-3), _costs(growth=0.2, draft=3e-3)
    short, long = (100.0, 210.0, 200.0, 150.0), (100.0, 150.0, 200.0, 250.0)

    def tasks(name, costs, *speeds):
        view = _view(name, costs=costs)
        by_task = tuple(replace(view.pooled, task=f"t{n}", tokens_per_second=s) for n, s in enumerate(speeds))
        return replace(view, speeds=(view.pooled, *by_task))

    found = contrast([tasks("none", dear, short, short), tasks("int8", cheap, short, long)])
    assert (found.order, found.longer_tasks) == ("same", (1, 2))
    assert contrast([tasks("none", dear, short, long), tasks("int8", cheap, long, short)]).longer_tasks is None


def test_step_costs_are_in_plain_steps():
    assert step_costs(_costs(growth=0.1, draft=1e-3)) == pytest.approx([1.0, 1.2, 1.4, 1.6])


def test_choosing_on_the_same_prompts_is_admitted():
    assert held_out_speedups([_view(held_out=203.0)]) == {"int8": 2.03}
    assert held_out_speedups([_view()]) == {}


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
        (signed(-0.25, "0"), "−25%"),
        (signed(-0.00001), "0%"),
    ],
)
def test_number_formats(shown, text):
    assert shown == text


def test_a_column_has_the_decimals_of_its_largest_value():
    assert [column_decimals(values) for values in ([3.0, 1.0], [25.0], [250.0, 3.0], [2500.0], [])] == [2, 2, 1, 0, 2]


def test_the_best_policy_is_marked_and_the_bound_is_not():
    rows = [
        TableRow("all", "plain", 1.0, 100.0, 1.0, live_tokens_per_second=99.0, live_ratio=1.0),
        TableRow("all", "fixed:2", 2.0, 210.0, 2.1, 195.0, 1.9, live_low=1.8, live_high=2.01, mismatches=1200),
        TableRow("all", "someone-elses", live_tokens_per_second=190.0, live_ratio=1.95),
        TableRow("all", "hindsight", 3.0, 275.0, 2.75),
    ]
    (group,) = compression_table(_view(rows=rows))
    assert group.task == "all tasks"
    assert [sorted(line.marks) for line in group.lines] == [[], ["modelled"], ["live"], []]
    line = group.lines[1]
    assert (line.modelled, line.live, line.interval) == ("2.10×", "1.90×", "1.80 – 2.01")
    assert (line.tokens_per_step, line.modelled_speed, line.live_speed) == ("2.000", "210.0", "195.0")
    assert line.mismatches == "1,200"
    assert (group.lines[2].tokens_per_step, group.lines[2].modelled, group.lines[2].description) == ("–", "–", "")


def test_a_point_is_no_interval():
    ends = [(1.75, 1.75), (1.75, 1.76), (None, None)]
    rows = [TableRow("code", f"fixed:{n}", live_low=low, live_high=high) for n, (low, high) in enumerate(ends)]
    (group,) = compression_table(_view(rows=rows))
    assert [line.interval for line in group.lines] == ["", "1.75 – 1.76", ""]


def test_policies_side_by_side():
    one = _view(
        "none",
        rows=[
            TableRow("all", "fixed:2", 2.0, 210.0),
            TableRow("all", "hindsight", 3.0, 300.0),
            TableRow("all", "generate"),
        ],
    )
    two = _view(
        "int8",
        rows=[
            TableRow("all", "fixed:2", 2.0, 150.0),
            TableRow("all", "fixed:3", 2.0, 160.0),
            TableRow("code", "fixed:1", 2.0, 999.0),
        ],
    )
    columns, lines = policies_table(ReportData((one, two)))
    assert columns == ("uncompressed", "int8")
    assert [(line.policy, line.ratios, line.best) for line in lines] == [
        ("fixed:2", ("2.10×", "1.50×"), (True, False)),
        ("hindsight", ("3.00×", "–"), (False, False)),
        ("fixed:3", ("–", "1.60×"), (False, True)),
    ]


def test_variants_of_a_policy_are_described():
    assert describe("fixed:4") == "always drafts that many tokens"
    assert describe("hf-confidence:adaptive=true") != describe("hf-confidence:threshold=0.3")
    assert describe("unheard-of:1") == ""
