"""What the report shows is what replay gives, beside what was measured live; in a browser nothing complains."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import draftgauge as dg
from draftgauge.api.report import write_report
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.judging.evaluate import ALL_TASKS, evaluate
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import best_fixed_gamma, plain_replay, replay
from draftgauge.judging.splits import design_of
from draftgauge.policies import make_policy
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.reporting import page
from draftgauge.reporting.page import advise, policy_table, render
from draftgauge.reporting.rows import JudgedRun, best_length, describe, judge_run, policy_rows
from draftgauge.traces.run import Run
from draftgauge.traces.trace import select

POLICIES = ("hf-confidence", "cumulative-confidence", "hf-heuristic", "stopping", "two-source")
LIVE = ("ratio_to_plain", "ratio_to_plain_low", "ratio_to_plain_high", "tokens_per_second")


def read_runs(folders: list[Path], bench: list[dict[str, Any]]) -> list[JudgedRun]:
    runs = []
    for folder in folders:
        run = Run(folder)
        trace, costs = run.read()
        policies = {spec: make_policy(spec, trace.gamma_max, costs) for spec in POLICIES}
        runs.append(judge_run(run, design_of(trace), policies, bench))
    return runs


@pytest.fixture(scope="module")
def read(runs: list[Path]) -> list[JudgedRun]:
    return read_runs(runs, [])


@pytest.mark.parametrize("number", [0, 1])
def test_fixed_lengths_are_the_replays(read, number):
    run = read[number]
    assert run.tasks == [ALL_TASKS, "code", "math"]
    for task in run.tasks:
        part = select(run.trace, [task in (ALL_TASKS, p.task) for p in run.trace.prompts])
        for gamma, row in enumerate(run.fixed(task)):
            outcome = replay(part, make_policy(f"fixed:{gamma}", run.trace.gamma_max), run.cost)
            assert row["tokens_per_second"] == pytest.approx(outcome.tokens_per_second)
            assert row["tokens_per_step"] == pytest.approx(outcome.tokens_per_step)
        assert best_length(run.fixed(task)) == best_fixed_gamma(part, run.cost)
        plain = plain_replay(part, run.cost).seconds.sum()
        assert run.rows[task, "plain"]["tokens_per_second"] == pytest.approx(part.positions / plain)
        bound = hindsight_optimum(part, run.cost, text=True).tokens_per_second
        assert run.rows[task, "hindsight-two-sources"]["tokens_per_second"] == pytest.approx(bound)


def test_a_task_that_is_called_all_is_all_of_them(of_task_all):
    (run,) = read_runs([of_task_all], [])
    assert run.tasks == [ALL_TASKS]


def test_live_measurements_stand_beside_replayed_ones(runs, live_row):
    bench = [
        live_row("plain", tokens_per_second=150.0, ratio_to_plain=1.0),
        live_row("fixed:gamma=2", tokens_per_second=310.0, ratio_to_plain=2.1, mismatched_prompts=3, near_ties=2),
        live_row("no-draft"),
        live_row("fixed:4", task="code", ratio_to_plain=1.7, ratio_to_plain_low=None, ratio_to_plain_high=float("nan")),
        live_row("transformers-generate", tokens_per_step=None, ratio_to_plain=0.7),
        live_row("fixed:3", compression="nf4"),
        live_row("fixed:gamma=2", compression="nf4", ratio_to_plain=9.0),  # the same policy of another target, later
        {"run": "broken", "error": "it could not be benched"},
    ]
    run, other = read_runs(runs, bench)
    shown = {row["policy"]: row for row in policy_rows(run, ALL_TASKS, ())}
    fixed = shown["fixed:2"]
    assert [fixed[f"live_{key}"] for key in LIVE] == [2.1, 1.4, 1.6, 310.0]
    assert (fixed["mismatched_prompts"], fixed["near_ties"]) == (3, 2)
    assert fixed["ratio_to_plain"] == run.fixed()[2]["ratio_to_plain"] != 2.1
    assert {"ratio_to_plain", "tokens_per_second"}.isdisjoint(shown["transformers-generate"])
    assert page._speeds(replace(run, verdict=replace(run.verdict, setting="transformers-generate"))) is None
    assert (list(shown)[:2], list(shown)[-2:]) == (["plain", "no-draft"], ["hindsight", "hindsight-two-sources"])
    code = run.rows["code", "fixed:4"]
    assert (code["live_ratio_to_plain"], "live_ratio_to_plain_low" in code) == (1.7, False)
    assert not any("live_ratio_to_plain" in row for row in other.rows.values())


def test_bad_input_is_refused(runs, live_row):
    with pytest.raises(TraceError, match=r"same compression: give one run \(draftgauge report "):
        render(read_runs([runs[0], runs[0]], []))
    trace, costs = Run(runs[0]).read()
    modelled = evaluate(trace, costs, {"no-draft": make_policy("no-draft", 6)})
    with pytest.raises(DraftgaugeError, match="lacks mismatches"):
        read_runs(runs, modelled)
    with pytest.raises(DraftgaugeError, match="gamma"):
        read_runs(runs, [live_row("fixed:many")])
    with pytest.raises(DraftgaugeError, match="tokens_per_second of a row of the live measurements cannot be 'many'"):
        read_runs(runs, [live_row("fixed:2") | {"tokens_per_second": "many"}])


@pytest.mark.parametrize(("prompts", "leads"), [(9, True), (7, False)])
def test_the_advice_leads_with_what_was_measured_live_where_that_is_known(runs, live_row, prompts, leads):
    modelled = read_runs(runs, [])[0].verdict
    speeds = {"plain": 1.0, "fixed:2": 2.05, "stopping": 2.06, "transformers-generate": 3.0}
    ends = {
        name: {"ratio_to_plain_low": value - 0.1, "ratio_to_plain_high": value + 0.1} for name, value in speeds.items()
    }
    more = {name: {"prompts": prompts, "recommended": name == "fixed:2"} | ends[name] for name in speeds}
    run = read_runs(runs, [live_row(name, ratio_to_plain=speeds[name], **more[name]) for name in speeds])[0]
    live, replayed = (run.verdict, run.other) if leads else (run.other, run.verdict)
    assert replayed == modelled
    assert (live.setting, live.speedup, live.live) == ("fixed:2", 2.05, True)
    assert "It is level with the fastest, stopping (2.06x), and simpler." in str(live)
    assert advise(run)["other"] == run.other


def test_fitted_policies_go_by_their_file(read, tmp_path, monkeypatch):
    monkeypatch.setitem(FITTED, "sure", (lambda *given: FixedLength(2), ()))
    spec = str(tmp_path / "mine.json")
    save_fitted(FittedPolicy("sure", 6, (), {}, trained_on=("code/p0",)), tmp_path / "mine.json")
    run = read[0]
    found = judge_run(Run(run.folder), design_of(run.trace), {spec: make_policy(spec, 6, run.cost)})
    assert any(line[0] == "mine" for line in policy_table(found, ALL_TASKS, [1]).lines)
    assert "fitted on 1 prompts" in describe(spec)


def test_what_is_advised_is_marked_and_the_bound_is_not(read):
    table = policy_table(read[0], "code", [1])
    kinds = dict(zip((line[0] for line in table.lines), table.kinds, strict=True))
    assert [name for name, kind in kinds.items() if kind == "best"] == [read[0].verdict.setting]
    assert kinds["hindsight"] == kinds["hindsight-two-sources"] == "bound"
    assert "live" not in table.headings


def test_live_rows_of_another_run_of_the_same_target_are_left_out(runs, live_row):
    """As ``bench`` writes them for a folder of several runs."""
    named = {runs[0].name: 2.0, "another": 7.0}
    bench = [live_row("fixed:2", run=name, ratio_to_plain=ratio) for name, ratio in named.items()]
    (run,) = read_runs(runs[:1], bench)
    assert run.rows[ALL_TASKS, "fixed:2"]["live_ratio_to_plain"] == 2.0


def test_flags_are_of_engines_that_the_costs_of_the_run_hold_for(
    read: list[JudgedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``advise`` refuses the others without costs of their own."""
    monkeypatch.setattr(page, "flags_of", lambda engine, setting, *_: setting)
    for source, recorded, engine in (("org/target", "lean", "transformers"), ("big.gguf", "gguf-fast", "gguf")):
        manifest = read[0].manifest
        manifest = replace(manifest, target=replace(manifest.target, source=source, engine=recorded))
        verdict: Any = SimpleNamespace(setting="lookup")
        assert page._flags(replace(read[0], manifest=manifest, verdict=verdict)) == [(engine, "lookup")]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PROBE = """<!DOCTYPE html><title>probe</title>
<iframe style="width:WIDTHpx;height:900px;border:0" srcdoc="PAGE"></iframe>
<pre id="found"></pre><script>
document.querySelector("iframe").onload = event => {
  const page = event.target.contentDocument;
  page.querySelectorAll("details").forEach(each => each.open = true);
  document.getElementById("found").textContent = JSON.stringify({
    width: page.documentElement.scrollWidth,
    figures: [...page.querySelectorAll(".figure")].map(each => each.textContent),
    said: [...page.querySelectorAll(".card > p")].map(each => each.textContent),
  });
};</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_and_shows_the_verdict_of_the_rows(runs: list[Path], tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    page = html.escape(write_report(runs[0], tmp_path / "report.html").read_text())
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    shown = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'user'}", probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (found,) = re.findall(r'<pre id="found">(.*?)</pre>', shown.stdout, re.DOTALL)
    seen = json.loads(html.unescape(found))
    assert seen["width"] <= width
    assert "CONSOLE" not in shown.stderr
    (advised,) = [row for row in dg.advise(runs[0]) if row["recommended"]]
    assert any(advised["verdict"] in text for text in seen["said"])
    assert seen["figures"][0].startswith(f"{advised['ratio_to_plain']:.2f}")
