"""What the report says in words and in table cells."""

from __future__ import annotations

import pytest

from draftgauge.report.data import ReportData
from draftgauge.report.figures import step_costs
from draftgauge.report.prose import best_note, headline, how_chosen, why_lengths_differ
from draftgauge.report.style import column_decimals, fixed, number, percent, ratio
from draftgauge.report.tables import compression_table, describe, policies_table
from draftgauge.report.views import CompressionView, SpeedCurve, TableRow
from draftgauge.traces.costs import CostCurve


def _costs(verify=10e-3, growth=0.1, draft=1e-3, gamma_max=3):
    contexts = (64, 128)
    verifying = ((*(verify * (1 + growth * k) for k in range(gamma_max + 1)),),) * 2
    drafting = ((*(draft * n for n in range(gamma_max + 1)),),) * 2
    return CostCurve(contexts, *[verifying] * 3, *[drafting] * 3, 0.0, (verify, verify), "none", "cpu", "float32")


def _view(name="int8", speeds=(100.0, 150.0, 210.0, 190.0), costs=None, rows=(), held_out=None, hindsight=275.1):
    steps = tuple(1.0 + 0.7 * g for g in range(len(speeds)))
    curve = SpeedCurve("all", steps, speeds, plain=100.0, hindsight=hindsight, held_out=held_out)
    return CompressionView(name, costs or _costs(), 8, (), (curve,), tuple(rows))


def test_the_headline_names_length_gain_and_what_is_left():
    head = headline(_view())
    assert head.speedup == "2.10×"
    assert head.advice == (
        "With the int8 target, draft 2 tokens: 2.10× plain decoding (modelled). "
        "Choosing the length perfectly at every step would give another 31%."
    )
    assert "One more drafted token costs 10% of verifying one token" in head.reason
    assert "verifying 3 tokens at once costs 1.20× verifying one" in head.reason
    assert head.tasks == ()


def test_the_headline_quotes_live_measurements():
    live = {"ratio_is_live": True, "policy": "fixed:2"}
    by_task = [TableRow(task, ratio_to_plain=value, **live) for task, value in (("code", 2.4), ("chat", 1.8))]
    assert "(modelled; 1.80× to 2.40× measured live, by task)" in headline(_view(rows=by_task)).advice
    pooled = [
        *by_task,
        TableRow("all", ratio_to_plain=2.05, **live),
        TableRow("all", ratio_to_plain=9.0, policy="fixed:3", ratio_is_live=True),
    ]
    assert "(modelled; 2.05× measured live)" in headline(_view(rows=pooled)).advice
    modelled = [TableRow("all", "fixed:2", ratio_to_plain=2.1)]
    assert "(modelled)" in headline(_view(rows=modelled)).advice


def test_the_headline_advises_against_drafting_that_does_not_pay():
    head = headline(_view("none", speeds=(98.0, 90.0, 80.0, 70.0), hindsight=120.0))
    assert head.speedup == "1.00×"
    assert head.advice.startswith(
        "With the uncompressed target, do not draft: the best length, 1 token, reaches 0.90× plain decoding (modelled)."
    )
    assert head.advice.endswith("would reach 1.20×.")


def test_lengths_differ_because_of_costs_only_where_they_follow_them():
    cheap, dear = _costs(growth=0.02, draft=0.5e-3), _costs(growth=0.2, draft=3e-3)
    early, late = (100.0, 200.0, 150.0, 140.0), (100.0, 150.0, 200.0, 250.0)
    assert why_lengths_differ([_view()]) == ""
    follows = why_lengths_differ([_view("none", early, dear), _view("int8", late, cheap)])
    assert "50% with the uncompressed target; 7.0% with the int8 target" in follows
    assert "That is why the best length differs: where another token is cheap (int8)" in follows
    assert "do not follow" in why_lengths_differ([_view("none", late, dear), _view("int8", early, cheap)])
    assert "the same for all" in why_lengths_differ([_view("none", late, dear), _view("int8", late, cheap)])


def test_a_flat_curve_is_said_to_be_flat():
    flat, steep = (100.0, 208.0, 210.0, 207.0), (100.0, 150.0, 210.0, 160.0)
    assert headline(_view(speeds=flat)).reason.endswith(
        "on average. Any length from 1 to 3 tokens is within 2% of the best."
    )
    assert headline(_view(speeds=steep)).reason.endswith("on average.")
    cheap, dear = _costs(growth=0.02, draft=0.5e-3), _costs(growth=0.2, draft=3e-3)
    late = (100.0, 150.0, 203.0, 204.0)
    told = why_lengths_differ([_view("none", steep, dear), _view("int8", late, cheap)])
    assert told.endswith("It does not matter much here: 2 tokens would be within 2% of the best for each of them.")
    assert "does not matter" not in why_lengths_differ(
        [_view("none", steep, dear), _view("int8", (100.0, 150.0, 180.0, 204.0), cheap)]
    )


def test_step_costs_are_in_plain_steps():
    assert step_costs(_costs(growth=0.1, draft=1e-3)) == pytest.approx([1.0, 1.2, 1.4, 1.6])


def test_choosing_on_the_same_prompts_is_admitted():
    assert "which favours it. Chosen for each prompt on all the others, it reaches 2.03× (int8)" in how_chosen(
        [_view(held_out=203.0)]
    )
    assert how_chosen([_view()]).endswith("which favours it.")


def test_the_note_of_a_speed_chart():
    assert best_note(_view().pooled) == "best γ = 2: 210 tokens/s, 2.10× plain; hindsight +31%"


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
    ],
)
def test_number_formats(shown, text):
    assert shown == text


def test_a_column_has_the_decimals_of_its_largest_value():
    assert [column_decimals(values) for values in ([3.0, 1.0], [25.0], [250.0, 3.0], [2500.0], [])] == [2, 2, 1, 0, 2]


def test_the_best_policy_is_marked_and_the_bound_is_not():
    rows = [
        TableRow("all", "plain", 1.0, 100.0, live_tokens_per_second=99.0),
        TableRow(
            "all", "fixed:2", 2.0, 210.0, live_tokens_per_second=190.0, live_low=180.0, live_high=201.0, mismatches=1200
        ),
        TableRow("all", "someone-elses", live_tokens_per_second=195.0),
        TableRow("all", "hindsight", 3.0, 275.0),
    ]
    (group,) = compression_table(_view(rows=rows))
    assert group.task == "all tasks"
    assert [sorted(line.marks) for line in group.lines] == [[], ["modelled"], ["live"], []]
    line = group.lines[1]
    assert (line.tokens_per_step, line.modelled, line.live, line.interval, line.mismatches) == (
        "2.000",
        "210.0",
        "190.0",
        "180.0 – 201.0",
        "1,200",
    )
    assert (group.lines[2].tokens_per_step, group.lines[2].modelled, group.lines[2].description) == ("–", "–", "")


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
