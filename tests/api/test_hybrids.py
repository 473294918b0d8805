"""A hybrid that is recorded: replay charges what rolling back costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.judging.replay import replay
from draftgauge.policies.spec import make_policy
from draftgauge.traces.run import Run
from small_profiles import record, save_hybrid


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
