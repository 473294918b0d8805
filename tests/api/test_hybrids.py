"""A hybrid through the verbs: recorded, decoded live, fitted on and advised on, with what rolling back costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import draftgauge as dg
from draftgauge.judging.replay import replay
from draftgauge.policies.spec import make_policy
from draftgauge.traces.run import Run
from small_profiles import PROMPTS, record, save_hybrid


@pytest.fixture(scope="module")
def run(models: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrids")
    hybrids = {"target": save_hybrid(folder / "target"), "drafter": save_hybrid(folder / "draft", noise=0.05)}
    record(models | hybrids, folder / "run")
    return folder / "run"


def test_replay_charges_what_rolling_back_costs(run: Path) -> None:
    trace, costs = Run(run).read()
    assert len(costs.rollback) == trace.gamma_max
    taken, free = (
        replay(trace, make_policy("fixed:3", trace.gamma_max, costs), curve).record
        for curve in (costs, replace(costs, rollback=()))
    )
    rejected = taken.accepted < taken.drafted
    assert 0 < rejected.sum() < len(rejected)
    back = np.where(rejected, np.array(costs.rollback)[np.minimum(taken.accepted, trace.gamma_max - 1)], 0.0)
    np.testing.assert_allclose(taken.seconds - free.seconds, back, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bench_fit_and_advise(run: Path, tmp_path: Path) -> None:
    rows = dg.bench(run, ("fixed:3", "stopping"), rounds=1, limit=2, baselines=False, device="cpu")
    assert {row["policy"] for row in rows} >= {"fixed:3", "stopping"}
    assert all(row["mismatches"] == 0 for row in rows)
    (fitted,) = dg.fit(run, "stopping", out=tmp_path / "fitted.json", split="all")
    assert fitted["trained_prompts"] == PROMPTS
    assert sum(bool(row["recommended"]) for row in dg.advise(run)) == 1
