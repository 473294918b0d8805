"""The ablation: arms that differ by one choice, results that are kept, differences paired by seed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.config import NORMS
from draftgauge.studies.kvshot import ablation as module
from draftgauge.studies.kvshot.ablation import AS_IT_STANDS, ablation_jobs, ablation_rows, arms, read_ablation
from draftgauge.studies.kvshot.cells import Ablation
from draftgauge.training.reuse.request import TrainingSpec
from tiny import save_tiny

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_arm_changes_one_choice() -> None:
    names = {design: [arm.name for arm in arms(design, 8)] for design in ("hidden", "kv", "hybrid", "none")}
    assert len(names["hidden"]) == len(names["hybrid"]) == 12
    assert names["kv"] == [
        AS_IT_STANDS,
        "norm before the head started at one",
        "attention started at random",
        "attention started at itself",
        "adamw",
        "head frozen",
        "layers of SpecForge",
        "layers up to the last",
    ]
    assert names["none"] == names["kv"][:6]
    assert [arm.name for arm in arms("hybrid", 4)] == names["hybrid"][:-2]
    default = TrainingSpec()
    for arm in arms("hybrid", 8):
        changed = {
            key for key in arm.settings if getattr(replace(default, **arm.settings), key) != getattr(default, key)
        }
        assert changed == set(arm.settings)
        assert len(changed) == {AS_IT_STANDS: 0, "without the three": len(NORMS)}.get(arm.name, 1)


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    jobs = ablation_jobs(Ablation(("hidden",), 3, (0, 1, 2)), TrainingSpec(), tmp_path, "target", 8)
    assert [job.base.seed for job in jobs] == [seed for seed in (0, 1, 2) for _ in range(12)]
    seeds = {0: 1.0, 1: 2.0, 2: 4.0}
    for job in jobs:
        better = {"head frozen": 0.25, "without the three": -0.5}.get(job.arm.name, 0.0)
        if (job.arm.name, job.base.seed) == ("head frozen", 2):
            continue  # not run yet
        found = [seeds[job.base.seed] - better] * 7
        job.path.write_text(json.dumps({"identity": job.identity(), "validation_kl": found}))
    rows = {row["ablation"]: row for row in ablation_rows(jobs)}
    assert rows[AS_IT_STANDS]["validation_kl"] == pytest.approx(7 / 3)
    assert "difference" not in rows[AS_IT_STANDS]
    assert (rows["head frozen"]["difference"], rows["head frozen"]["seeds"]) == (pytest.approx(-0.25), 2)
    assert rows["without the three"]["difference"] == pytest.approx(0.5)
    assert rows["without the three"]["least"] == pytest.approx(0.5)
    assert [name for name, row in rows.items() if row["best"]] == ["head frozen"]
    for job in jobs:  # a seed that only some arms have run says nothing of which is best
        if job.base.seed == 2 and job.arm.name != AS_IT_STANDS:
            job.path.unlink(missing_ok=True)
        elif job.arm.name == "head frozen":
            job.path.write_text(json.dumps({"identity": job.identity(), "validation_kl": [2.5] * 7}))
    rows = {row["ablation"]: row for row in ablation_rows(jobs)}
    assert rows["head frozen"]["validation_kl"] > rows["adamw"]["validation_kl"] < rows[AS_IT_STANDS]["validation_kl"]
    assert rows[AS_IT_STANDS]["best"]
    with pytest.raises(DraftgaugeError, match="other settings"):
        read_ablation(replace(jobs[0], fingerprint="another"))
    jobs[0].path.write_text("{")
    with pytest.raises(DraftgaugeError, match="cannot be read"):
        read_ablation(jobs[0])


def test_the_benchmark_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = save_tiny(tmp_path / "target", num_hidden_layers=8, hidden_size=32, intermediate_size=32)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {n}: ", "task": "a"}) + "\n" for n in range(4)))
    monkeypatch.syspath_prepend(BENCHMARKS)
    import norms

    def run(*extra: str) -> list[dict[str, Any]]:
        command = ["norms.py", "--target", str(target), "--prompts", str(prompts), "--validation", str(prompts)]
        command += ["--per-task", "2", "--steps", "1", "--questions", "4", "--new-tokens", "8", "--batch", "2"]
        command += ["--designs", "hidden", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), *extra]
        monkeypatch.setattr(sys, "argv", command)
        norms.main()
        rows: list[dict[str, Any]] = json.loads((tmp_path / "out" / "norms.json").read_text())["rows"]
        return rows

    first = run("--seeds", "1")
    assert [row["ablation"] for row in first] == [arm.name for arm in arms("hidden", 8)]
    assert sum(row["best"] for row in first) >= 1
    kls = {row["ablation"]: row["validation_kl"] for row in first}
    assert len({round(kl, 6) for kl in kls.values()}) >= 6  # every choice does something
    assert not [path for path in (tmp_path / "work" / module.FOLDER).iterdir() if path.is_dir()]

    trained: list[str] = []
    train = module.train_drafter

    def counting(request: TrainingSpec, out: Path, *rest: Any) -> Any:
        trained.append(out.name)
        return train(request, out, *rest)

    monkeypatch.setattr(module, "train_drafter", counting)
    (tmp_path / "work" / module.FOLDER / "ablation-hidden-head-frozen-seed0.json").unlink()
    again = run("--seeds", "1")
    assert trained == ["ablation-hidden-head-frozen-seed0"]
    assert {row["ablation"]: row["validation_kl"] for row in again} == kls
