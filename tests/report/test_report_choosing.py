"""The part of the report about policies judged on test prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.policies import make_policy
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying.cost_sweep import cost_sweep
from draftgauge.replaying.evaluate import ALL_TASKS, evaluate_design
from draftgauge.replaying.splits import design_of
from draftgauge.reporting import choosing
from draftgauge.reporting.choosing import ALWAYS_COMPARED, Choice, choose
from draftgauge.reporting.page import render
from draftgauge.reporting.rows import Run, read_runs
from draftgauge.reporting.style import signed
from draftgauge.traces.costs import CostCurve

SPECS = ("hf-heuristic", *ALWAYS_COMPARED)


@pytest.fixture(scope="module")
def run(judged_run: Path) -> Run:
    return read_runs([judged_run], [])[0]


@pytest.fixture(scope="module")
def choice(run: Run) -> Choice:
    return choose(run, ["hf-heuristic", "fixed", "no-draft"])


def arms(costs: CostCurve) -> dict:
    return {spec: make_policy(spec, 6, costs) for spec in SPECS}


def test_the_table_holds_the_rows_of_the_evaluation(choice: Choice, run: Run) -> None:
    rows = {row["policy"]: row for row in evaluate_design(design_of(run.trace), run.cost, arms) if row["task"] == "all"}
    lines = {line[0]: line for line in choice.table.lines}
    assert set(lines) == set(rows)
    for policy, line in lines.items():
        assert line[1] == signed(rows[policy]["gain"])
    ordered = [rows[policy]["gain"] for policy in lines if policy != "hindsight"]
    assert ordered == sorted(ordered, reverse=True)
    assert (list(lines)[-1], choice.table.kinds[-1]) == ("hindsight", "bound")
    best = max(SPECS, key=lambda spec: rows[spec]["gain"])
    assert [line[0] for line, kind in zip(choice.table.lines, choice.table.kinds, strict=True) if kind == "best"] == [
        best
    ]
    assert (choice.verdict["name"], choice.verdict["gain"]) == (best, rows[best]["gain"])
    assert (choice.prompts, choice.training_prompts) == (8, 8)


def test_no_policy_gains_more_than_the_optimum_of_the_sweep(choice: Choice, run: Run) -> None:
    swept = [row for row in cost_sweep(design_of(run.trace), run.cost, arms, resamples=100) if row["task"] == ALL_TASKS]
    bounds = {row["cost_ratio"]: row["gain"] for row in swept if row["policy"] == "hindsight"}
    assert choice.optimum == (min(bounds.values()), max(bounds.values()))
    assert all(row["gain"] <= bounds[row["cost_ratio"]] + 1e-12 for row in swept)


@pytest.mark.parametrize(
    ("low", "p_holm", "outcome"), [(0.02, 0.01, "ahead"), (0.02, 0.2, "by chance"), (-0.1, 0.01, "undecided")]
)
def test_the_outcome_follows_from_interval_and_adjusted_p_value(
    run: Run, monkeypatch: pytest.MonkeyPatch, low: float, p_holm: float, outcome: str
) -> None:
    evaluate = choosing.evaluate_design
    sure = {"gain": 0.5, "gain_low": low, "gain_high": 0.6, "p_holm": p_holm}

    def rows(*arguments: object) -> list:
        return [row | sure if row["policy"] == "hf-heuristic" else row for row in evaluate(*arguments)]

    monkeypatch.setattr(choosing, "evaluate_design", rows)
    verdict = choose(run, ["hf-heuristic"]).verdict
    assert (verdict["policy"], verdict["outcome"]) == ("hf-heuristic", outcome)


def test_fitted_policies_go_by_their_file(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FITTED, "sure", lambda parameters, gamma_max, costs: FixedLength(2))
    save_fitted(FittedPolicy("sure", 6, (), {}, trained_on=("code/p0",)), tmp_path / "mine.json")
    prompts = tuple(replace(info, prompt_token=(1,) * info.prompt_tokens) for info in run.trace.prompts)
    found = choose(replace(run, trace=replace(run.trace, prompts=prompts)), [str(tmp_path / "mine.json")])
    line = next(line for line in found.table.lines if line[0] == "mine")
    assert "fitted on 1 prompts" in line[-1]


def test_the_page_states_the_verdict(run: Run, choice: Choice) -> None:
    html = render([run], command="x", policies=["hf-heuristic"])
    section = " ".join(html[html.index('<section id="choosing">') : html.index('<section id="timelines">')].split())
    assert section.count("<svg viewBox") == 1
    assert f"{choice.verdict['name']} comes to {signed(choice.verdict['gain'])}" in section


def test_without_test_prompts_there_is_nothing_to_judge_on(runs: list[Path], single_run: Path) -> None:
    assert 'id="choosing"' not in render(read_runs(runs, []), command="x")
    single = read_runs([single_run], [])
    assert 'id="choosing"' not in render(single, fitted=["hf-heuristic"])  # which lies in the folder, unasked
    with pytest.raises(TraceError, match=r"8 or more: record (?!.*--split)"):  # which `draftgauge report` has not
        render(single, policies=["hf-heuristic"])


def test_a_policy_fitted_for_other_drafts_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FITTED, "short", lambda parameters, gamma_max, costs: FixedLength(1))
    save_fitted(FittedPolicy("short", 3, (), {}), tmp_path / "p.json")
    with pytest.raises(DraftgaugeError, match="fitted for gamma_max 3"):
        choose(run, [str(tmp_path / "p.json")])
