"""The part of the report about policies judged on test prompts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.policies import make_policy
from draftgauge.policies.base import SignalArrays
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying import ALL_TASKS, cost_sweep, design_of, evaluate_design, replay
from draftgauge.reporting.choosing import ALWAYS_COMPARED, CONFIDENCE, choosing_view
from draftgauge.reporting.choosing_text import Verdict, judged_lines, verdict
from draftgauge.reporting.choosing_views import ChoosingView, JudgedPolicy
from draftgauge.reporting.collect import collect
from draftgauge.reporting.page import render
from draftgauge.reporting.style import signed
from draftgauge.reporting.timeline import replay_timeline
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.reader import read_trace
from draftgauge.traces.trace import Trace

SPECS = ("hf-heuristic", *ALWAYS_COMPARED)


@pytest.fixture(scope="module")
def costs(judged_run: Path) -> CostCurve:
    return CostCurve.load(judged_run / COSTS_NAME)


@pytest.fixture(scope="module")
def trace(judged_run: Path) -> Trace:
    return read_trace(judged_run)


@pytest.fixture(scope="module")
def view(trace: Trace, costs: CostCurve) -> ChoosingView:
    return choosing_view(trace, costs, ["hf-heuristic", "fixed", "none"], ["x"] * trace.positions)


def test_the_table_holds_the_rows_of_the_evaluation(view: ChoosingView, trace: Trace, costs: CostCurve) -> None:
    rows = evaluate_design(design_of(trace), costs, lambda curve: {spec: make_policy(spec, 6, curve) for spec in SPECS})
    pooled = [row for row in rows if row["task"] == ALL_TASKS]
    assert [policy.policy for policy in view.policies] == [row["policy"] for row in pooled]
    for policy, row in zip(view.policies, pooled, strict=True):
        assert policy.gain == (row["gain_low"], row["gain"], row["gain_high"])
        assert policy.tokens_per_second == row["tokens_per_second"]
        assert policy.p_holm == row["p_holm"]
        assert policy.reference == (policy.policy not in SPECS)
    assert (view.prompts, view.training_prompts, view.best_gamma) == (8, 8, pooled[0]["best_fixed_gamma"])


def test_the_curves_are_those_of_the_cost_sweep(view: ChoosingView, trace: Trace, costs: CostCurve) -> None:
    rows = cost_sweep(
        design_of(trace), costs, lambda curve: {spec: make_policy(spec, 6, curve) for spec in SPECS}, resamples=100
    )
    assert tuple(curve.policy for curve in view.sweep) == SPECS
    for curve in view.sweep:
        mine = [row for row in rows if row["policy"] == curve.policy and row["task"] == ALL_TASKS]
        assert curve.ratios == (0.02, 0.04, 0.10, 0.25, 0.50)
        assert curve.gain == tuple(row["gain"] for row in mine)
        assert curve.captured == tuple(row["captured"] for row in mine)
        assert all(mine <= bound for mine, bound in zip(curve.gain, view.optimum, strict=True))


def test_lengths_along_a_text_are_those_of_the_replay(view: ChoosingView, trace: Trace) -> None:
    fixed, ahead, hindsight = view.lengths.lines
    assert (fixed.policy, ahead.policy, hindsight.policy) == (
        f"fixed:{view.best_gamma}",
        view.ahead.policy,
        "hindsight",
    )
    test = design_of(trace).trace
    prompt = next(i for i, info in enumerate(test.prompts) if info.identifier == view.lengths.identifier)
    record = replay(test, make_policy(view.ahead.policy, 6)).record
    drafted = record.drafted[record.prompt == prompt].tolist()
    assert [step[1] for step in ahead.steps] == drafted
    for line in view.lengths.lines:
        assert sum(step[3] for step in line.steps) == test.prompts[prompt].output_tokens
    assert len(view.text.steps) == len(drafted)
    assert view.text.gamma is None


def test_a_timeline_of_changing_lengths_equals_that_of_a_fixed_one_where_they_are_equal(trace: Trace) -> None:
    texts = ["x"] * trace.positions
    everywhere = dict.fromkeys(range(trace.positions), 3)
    changing, fixed = replay_timeline(trace, 2, everywhere, texts), replay_timeline(trace, 2, 3, texts)
    assert changing == replace(fixed, gamma=None)


def test_predictions_of_policies_stand_beside_the_drafters_confidence(
    trace: Trace, costs: CostCurve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sure(FixedLength):
        def acceptance(self, signals: SignalArrays) -> np.ndarray:
            return np.ones(signals.confidence.shape)

    monkeypatch.setitem(FITTED, "sure", lambda parameters, gamma_max, costs: Sure(2))
    save_fitted(FittedPolicy("sure", 6, (), {}, trained_on=("code/p0",)), tmp_path / "mine.json")
    known = replace(
        trace, prompts=tuple(replace(info, prompt_token=(1,) * info.prompt_tokens) for info in trace.prompts)
    )
    found = choosing_view(known, costs, [str(tmp_path / "mine.json")], ["x"] * trace.positions)
    confidence, sure = found.calibration
    assert (confidence.name, sure.name) == (CONFIDENCE, "mine")
    assert sure.brier == pytest.approx(sure.calibration_error)  # with chances of 1 both are the share rejected
    assert sure.skill < confidence.skill
    mine = next(policy for policy in found.policies if policy.policy == "mine")
    assert "fitted on 1 prompts" in mine.description


def judged(
    policy: str, gain: tuple[float, float, float], reference: bool = False, p_holm: float | None = None
) -> JudgedPolicy:
    return JudgedPolicy(policy, "", reference, 2.0, 100.0, gain, (0.1, 0.25, 0.4), p_holm)


def test_what_the_table_comes_to(view: ChoosingView) -> None:
    bound = judged("hindsight", (0.3, 0.4, 0.5), reference=True)

    def outcome(*policies: JudgedPolicy) -> Verdict:
        return verdict(replace(view, best_gamma=1, policies=(*policies, bound)))

    ahead, behind = judged("mine", (0.02, 0.06, 0.1), p_holm=0.01), judged("other", (-0.1, 0.01, 0.1), p_holm=0.9)
    assert outcome(behind, ahead) == Verdict(view.name, "mine", 0.02, 0.06, 0.1, 1, 0.25, "ahead")
    assert outcome(behind).outcome == "undecided"
    assert outcome(replace(ahead, p_holm=0.2)).outcome == "by chance"

    lines = judged_lines(
        replace(view, policies=(judged("fixed:1", (0.0, 0.0, 0.0), reference=True), behind, ahead, bound))
    )
    assert [line.policy for line in lines] == ["mine", "other", "fixed:1", "hindsight"]
    assert [line.kind for line in lines] == ["best", "", "reference", "bound"]
    assert (lines[2].gain, lines[2].gain_interval, lines[2].p_holm) == ("0%", "", "\N{EN DASH}")


def test_the_page_has_its_charts_and_the_text_as_it_was(judged_run: Path) -> None:
    data = collect([judged_run], command="x")
    html = render(data)
    section = html[html.index('<section id="choosing">') : html.index('<section id="timelines">')]
    assert section.count("<svg viewBox") == 3 + 3  # gain, captured, calibration; three strips
    what = verdict(data.choosing[0])
    assert f"{what.policy} comes to {signed(what.gain)}" in section
    drafted = [int(count) for count in re.findall(r'data-drafted="(\d+)"', section)]
    assert drafted == [step[1] for step in data.choosing[0].lengths.lines[1].steps]
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_without_test_prompts_there_is_nothing_to_judge_on(runs: list[Path], single_run: Path) -> None:
    assert collect(runs).choosing == ()
    assert 'id="choosing"' not in render(collect(runs, command="x"))
    assert collect([single_run], fitted=["hf-heuristic"]).choosing == ()  # which lies in the folder, unasked
    with pytest.raises(TraceError, match=r"8 or more: record (?!.*--split)"):  # which `draftgauge report` has not
        collect([single_run], policies=["hf-heuristic"])


def test_a_policy_fitted_for_other_drafts_is_refused(
    judged_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FITTED, "short", lambda parameters, gamma_max, costs: FixedLength(1))
    save_fitted(FittedPolicy("short", 3, (), {}), tmp_path / "p.json")
    with pytest.raises(DraftgaugeError, match="fitted for gamma_max 3"):
        collect([judged_run], policies=[str(tmp_path / "p.json")])
