"""What a new user does in the first hour: prompts of one's own through the verbs, in the terminal and in Python."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import draftgauge as dg
from command_line import succeeds
from draftgauge.core.provenance import read_measurement
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import COSTS_NAME
from row_keys import check_keys
from tiny import save_noisy, save_tiny
from written_runs import write_run

PROMPTS = [f"Question number {n}: what is {n} plus {n}?" for n in range(12)]


def ran(*arguments: object) -> str:
    result = succeeds(*map(str, arguments))
    return result.stdout


def prompt_file(path: Path, prompts: list[str] = PROMPTS) -> Path:
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return path


def pooled(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in rows if row["task"] == "all"}


def test_twelve_prompts_have_one_verdict_in_every_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "cache"))
    models = ("--target", save_tiny(tmp_path / "target"), "--drafter", save_noisy(tmp_path / "draft"))
    run, json_of = tmp_path / "run", {verb: tmp_path / f"{verb}.json" for verb in ("replay", "advise", "bench")}
    small = ("--gamma-max", 3, "--max-new-tokens", 8, "--cost-seconds", 0, "--device", "cpu")
    asked = ("profile", *models, "--prompts", prompt_file(tmp_path / "prompts.jsonl"), "--out", run, *small)
    recorded = succeeds(*asked, "--json", tmp_path / "profile.json")
    assert f"Next: draftgauge replay {run}" in recorded.stdout
    assert "verdict" not in recorded.stdout
    assert f"the first prompt as the model reads it: '{PROMPTS[0]}'" in recorded.message
    assert "12 prompts" in repr(dg.read_trace(run))
    row = read_measurement(tmp_path / "profile.json").rows[0]
    assert "cost_doubt" in row
    for doubt in (None, "all of them are noise"):
        with monkeypatch.context() as patch:
            patch.setattr("draftgauge.api.profile.profile", lambda *_, **__: [row | {"cost_doubt": doubt}] * 2)  # noqa: B023
            doubted = succeeds(*asked).message
        assert doubted.count("are not to be trusted, all of them are noise: run") == bool(doubt)
    curve = CostCurve.load(run / COSTS_NAME)  # steps of a tiny model are mostly noise: the verdict would be "not known"
    verify, draft = [(1.0, 1.02, 1.04, 1.06)] * len(curve.contexts), [(0.0, 0.1, 0.2, 0.3)] * len(curve.contexts)
    one = replace(curve, verify=tuple(verify), draft=tuple(draft), plain=(1.0,) * len(curve.contexts), measured=None)
    one.save(run / COSTS_NAME)

    said = {verb: ran(verb, run, "--json", path) for verb, path in json_of.items() if verb != "bench"}
    said["bench"] = ran("bench", run, "--rounds", 1, "--device", "cpu", "--json", json_of["bench"])
    written = {verb: list(read_measurement(path).rows) for verb, path in json_of.items()}
    speeds = ("policy", "ratio_to_plain", "tokens_per_step", "recommended", "verdict")
    check_keys(written["replay"], *speeds, "tokens_per_second", "gain", "acceptance_rate")
    check_keys(written["advise"], *speeds, "acceptance_rate", "alpha_1")
    check_keys(written["bench"], *speeds, "tokens_per_second", "gain")
    replayed = pooled(written["replay"])
    modelled = next(row["verdict"] for row in replayed.values() if row.get("verdict"))
    assert re.match(r"(Draft with|Do not draft).*modelled on 12 prompts", modelled)
    assert said["replay"].strip().endswith(modelled)

    (advised,) = [row for row in written["advise"] if row["recommended"]]
    assert advised["verdict"] == modelled
    assert modelled in said["advise"]
    assert dg.replay(run).verdict == modelled
    assert {row["verdict"] for row in dg.advise(run) if row["recommended"]} == {modelled}
    assert f"wrote {run / 'report.html'}" in ran("report", run, "--bench", json_of["bench"]).replace("\n", "")
    assert modelled in (run / "report.html").read_text()  # beside what was measured, where that is known
    page = dg.report(run).read_text()
    assert modelled in page
    figure = re.search(r'class="figure">\s*([\d.]+)', page)
    assert figure is not None
    assert figure[1] == f"{advised['ratio_to_plain'] if advised['policy'] != 'plain' else 1:.2f}"

    live = pooled(written["bench"])
    (verdict,) = [row["verdict"] for row in live.values() if "verdict" in row]
    assert said["bench"].splitlines()[-1] == f"uncompressed: {verdict}"
    assert "measured on 12 prompts" in verdict
    assert "modelled" not in verdict
    baselines = {"transformers-generate", "transformers-assisted", "transformers-assisted-constant"}
    assert {"plain", *baselines} <= {name.partition(":")[0] for name in live}
    assert all(row["mismatches"] == 0 for row in live.values())
    assert live["plain"]["ratio_to_plain"] == 1
    both = set(live) & set(replayed)
    assert both
    for policy in both:
        assert live[policy]["ratio_to_best_transformers"] > 0
        assert live[policy]["tokens_per_step"] == pytest.approx(replayed[policy]["tokens_per_step"])


def test_figures_are_drawn_on_axes(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    run = write_run(tmp_path / "run", 3)
    rows, trace, curve = dg.replay(run), dg.read_trace(run), CostCurve.load(run / COSTS_NAME)
    assert len(dg.plot.speed(rows).get_yticks()) == len(pooled(rows))
    assert dg.plot.acceptance(trace).get_ylabel() == "conditional acceptance rate"
    assert len(dg.plot.costs(curve).lines) == 2 * len(curve.contexts)
    assert len(dg.plot.timeline(trace, gamma=2).patches) == trace.prompts[0].output_tokens
