"""The ablation: arms that differ by one choice, results that are kept, differences paired by seed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.config import NORMS
from draftgauge.studies.kvshot.ablation import AS_IT_STANDS, ablation_jobs, ablation_rows, arms, read_ablation
from draftgauge.studies.kvshot.cells import Ablation
from draftgauge.training.reuse.request import TrainingSpec

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
