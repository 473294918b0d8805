"""A hybrid that is recorded: replay charges what rolling back costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from draftgauge.judging.replay import replay
from draftgauge.policies.spec import make_policy
from draftgauge.traces.run import Run
from small_profiles import record, save_hybrid


def test_replay_charges_what_rolling_back_costs(models: dict[str, Any], tmp_path: Path) -> None:
    hybrids = {"target": save_hybrid(tmp_path / "target"), "drafter": save_hybrid(tmp_path / "draft", noise=0.05)}
    record(models | hybrids, tmp_path / "run")
    trace, costs = Run(tmp_path / "run").read()
    assert len(costs.rollback) == trace.gamma_max
    taken, free = (
        replay(trace, make_policy("fixed:3", trace.gamma_max, costs), curve).record
        for curve in (costs, replace(costs, rollback=()))
    )
    rejected = taken.accepted < taken.drafted
    assert 0 < rejected.sum() < len(rejected)
    back = np.where(rejected, np.array(costs.rollback)[np.minimum(taken.accepted, trace.gamma_max - 1)], 0.0)
    np.testing.assert_allclose(taken.seconds - free.seconds, back, atol=1e-9)
