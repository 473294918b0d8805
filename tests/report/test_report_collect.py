"""What the report shows is what replay gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.policies import make_policy
from draftgauge.replaying import (
    ALL_TASKS,
    acceptance_by_depth,
    best_fixed_gamma,
    evaluate,
    hindsight_gain,
    hindsight_optimum,
    replay,
)
from draftgauge.replaying.hindsight import Sources
from draftgauge.reporting.collect import MIN_POSITIONS, collect
from draftgauge.reporting.page import build_report
from draftgauge.reporting.rows import MEASURED_LENGTHS, POLICIES
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.reader import read_trace


@pytest.fixture(scope="module")
def data(runs):
    return collect(runs, command="draftgauge report runs")


@pytest.mark.parametrize("number", [0, 1])
def test_speed_curves_are_the_replays(data, runs, number):
    trace, costs = read_trace(runs[number]), CostCurve.load(runs[number] / COSTS_NAME)
    view = data.compressions[number]
    assert [curve.task for curve in view.speeds] == [ALL_TASKS, "code", "math"]
    for curve in view.speeds:
        part = select(trace, [curve.task in (ALL_TASKS, p.task) for p in trace.prompts])
        for gamma in range(trace.gamma_max + 1):
            outcome = replay(part, make_policy(f"fixed:{gamma}", trace.gamma_max), costs)
            assert curve.tokens_per_second[gamma] == pytest.approx(outcome.tokens_per_second)
            assert curve.tokens_per_step[gamma] == pytest.approx(outcome.tokens_per_step)
        assert curve.best_gamma == best_fixed_gamma(part, costs)
        assert curve.hindsight == pytest.approx(hindsight_optimum(part, costs).tokens_per_second)
        assert curve.hindsight_gain == pytest.approx(hindsight_gain(part, costs))


def test_a_task_that_is_called_all_is_all_of_them(of_task_all, tmp_path):
    trace, costs = read_trace(of_task_all), CostCurve.load(of_task_all / COSTS_NAME)
    policies = {spec: make_policy(spec, trace.gamma_max) for spec in ("hf-heuristic", "cumulative-confidence")}
    rows = evaluate(trace, costs, policies)
    assert [(row["policy"], row["task"]) for row in rows] == [(spec, ALL_TASKS) for spec in policies]
    least = min(row["p_value"] for row in rows)
    assert min(row["p_holm"] for row in rows) == pytest.approx(min(1.0, 2 * least))
    assert [curve.task for curve in collect([of_task_all]).compressions[0].acceptance] == [ALL_TASKS]
    build_report([of_task_all], tmp_path / "report.html")


def test_held_out_speed_chooses_on_the_other_prompts(data, runs):
    trace, costs = read_trace(runs[0]), CostCurve.load(runs[0] / COSTS_NAME)
    seconds = 0.0
    for i in range(len(trace.prompts)):
        own = np.arange(len(trace.prompts)) == i
        gamma = best_fixed_gamma(select(trace, ~own), costs)
        seconds += replay(select(trace, own), make_policy(f"fixed:{gamma}", trace.gamma_max), costs).seconds.sum()
    assert data.compressions[0].pooled.held_out == pytest.approx(trace.positions / seconds)


def test_table_rows_are_those_of_evaluate(data, runs):
    trace, costs = read_trace(runs[1]), CostCurve.load(runs[1] / COSTS_NAME)
    view = data.compressions[1]
    policies = {row.policy for row in view.rows} - {"plain", "hindsight", "hindsight-two-sources"}
    assert policies >= {*POLICIES, f"fixed:{view.pooled.best_gamma}", f"fixed:{data.compressions[0].pooled.best_draft}"}
    made = {policy: make_policy(policy, trace.gamma_max, costs) for policy in policies}
    expected = {(row["task"], row["policy"]): row for row in evaluate(trace, costs, made)}
    for row in view.rows:
        if row.policy in policies:
            wanted = expected[row.task, row.policy]
            assert row.tokens_per_step == wanted["tokens_per_step"]
            assert row.modelled_tokens_per_second == wanted["tokens_per_second"]
            assert row.modelled_ratio == wanted["ratio_to_plain"]
            assert row.live_ratio is None
    bounds = {row.task: row.modelled_tokens_per_second for row in view.rows if row.policy == "hindsight-two-sources"}
    assert all(row.modelled_tokens_per_second <= bounds[row.task] for row in view.rows if row.task != "all")
    assert bounds["all"] == pytest.approx(hindsight_optimum(trace, costs, Sources.BOTH).tokens_per_second)
    plain = next(row for row in view.rows if row.policy == "plain")
    assert plain.modelled_tokens_per_second == view.pooled.plain


def test_acceptance_is_that_of_replay_where_enough_drafts_came(data, runs):
    rows = acceptance_by_depth(read_trace(runs[0]))
    assert any(row["positions"] < MIN_POSITIONS for row in rows)
    for curve in data.compressions[0].acceptance:
        of_task = [row for row in rows if row["task"] == curve.task]
        for i, row in enumerate(of_task):
            if row["positions"] >= MIN_POSITIONS:
                assert (curve.rate[i], curve.low[i], curve.high[i]) == (row["rate"], row["low"], row["high"])
            else:
                assert math.isnan(curve.rate[i])


def test_live_measurements_join_the_replays(runs, live_row):
    bench = [
        live_row("plain", tokens_per_second=150.0, ratio_to_plain=1.0),
        live_row("fixed:gamma=2", tokens_per_second=310.0, ratio_to_plain=2.1, mismatches=3),
        live_row("none"),
        live_row("transformers-generate", tokens_per_step=None, ratio_to_plain=0.7),
        live_row("fixed:3", compression="nf4"),
    ]
    pooled = {row.policy: row for row in collect(runs, bench).compressions[0].rows if row.task == ALL_TASKS}
    assert pooled["plain"].live_tokens_per_second == 150.0
    assert pooled["plain"].modelled_tokens_per_second is not None
    fixed = pooled["fixed:2"]
    assert (fixed.live_ratio, fixed.live_low, fixed.live_high, fixed.mismatches) == (2.1, 1.4, 1.6, 3)
    assert fixed.live_tokens_per_second == 310.0
    assert fixed.modelled_tokens_per_second is not None
    assert fixed.modelled_ratio not in (None, 2.1)
    assert pooled["none"].modelled_tokens_per_second is not None
    assert pooled["transformers-generate"].modelled_tokens_per_second is None
    order = list(pooled)
    assert (order[:2], order[-2:]) == (["plain", "none"], ["hindsight", "hindsight-two-sources"])


def test_fixed_measurements_are_points_of_the_charts(runs, live_row):
    unknown = {"ratio_to_plain_low": None, "ratio_to_plain_high": float("nan")}
    bench = [
        live_row("fixed:2"),
        live_row("fixed:4", task="code", **unknown),
        live_row("fixed:2", task="code", ratio_to_plain=float("nan")),
        live_row("hf-heuristic"),
    ]
    first, second = collect(runs, bench).compressions
    pooled, code, math_ = first.speeds
    assert [(p.gamma, p.ratio, p.low, p.high) for p in pooled.live] == [(2, 1.5, 1.4, 1.6)]
    assert [(p.gamma, p.low) for p in code.live] == [(4, None)]
    assert not math_.live
    assert not second.pooled.live


def test_of_many_measured_lengths_the_table_keeps_the_fastest(runs, live_row):
    measured = range(1, MEASURED_LENGTHS + 3)
    bench = [live_row(f"fixed:{g}", ratio_to_plain=1.0 + (g == 6)) for g in measured]
    data = collect(runs, bench)
    bests = {view.pooled.best_draft for view in data.compressions}
    shown = {
        row.policy for row in data.compressions[0].rows if row.task == ALL_TASKS and row.policy.startswith("fixed")
    }
    assert shown == {f"fixed:{g}" for g in bests | {6}}


def test_a_single_task_is_not_shown_twice(single_run):
    (view,) = collect([single_run]).compressions
    assert [curve.task for curve in view.speeds] == [ALL_TASKS]
    assert {row.task for row in view.rows} == {ALL_TASKS}
    assert view.pooled.held_out is None


def test_what_runs_share_is_told_once(data):
    shared = dict(data.provenance)
    assert shared["report made by"] == "draftgauge report runs"
    assert shared["drafter"] == "language_model"
    own = [dict(view.provenance) for view in data.compressions]
    assert "compression none" in own[0]["target"]
    assert "compression int8" in own[1]["target"]
    assert not any(label in facts for label in shared for facts in own)


def test_bad_input_is_refused(runs, live_row, tmp_path):
    with pytest.raises(TraceError, match="at least one"):
        collect([])
    with pytest.raises(TraceError, match="same compression"):
        collect([runs[0], runs[0]])
    with pytest.raises(TraceError, match="holds no trace"):
        collect([tmp_path])
    modelled = evaluate(read_trace(runs[0]), CostCurve.load(runs[0] / COSTS_NAME), {"none": make_policy("none", 6)})
    with pytest.raises(DraftgaugeError, match="lacks mismatches"):
        collect(runs, modelled)
    with pytest.raises(DraftgaugeError, match="gamma"):
        collect(runs, [live_row("fixed:many")])
