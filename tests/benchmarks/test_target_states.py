"""A state that foretells acceptance is found and gains; without it, or with one that says nothing, nothing does."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from draftgauge.core.config import from_mapping
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.policies.acceptance_model import StoppingNumbers
from draftgauge.traces.costs import CostCurve
from linear_costs import curve
from synthetic import synthetic_trace

GAMMA_MAX = 4


def prompts(seed: int, told: bool) -> Any:
    """Of a trace whose signals say little, with a state that says how many drafted tokens stand, or does not."""
    from target_states import Set

    trace = synthetic_trace(seed, prompts=24, length=40, gamma_max=GAMMA_MAX)
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(trace.positions, 3)).astype(np.float32)
    if told:
        state[:, 0] = trace.accepted + rng.normal(0, 0.2, trace.positions)
    shape = trace.positions, GAMMA_MAX
    return Set(trace, state, np.ones(shape), np.full(shape, float((trace.accepted > 0).mean())))


@cache
def costs() -> CostCurve:
    return curve(0.5, gamma_max=GAMMA_MAX)


@pytest.mark.parametrize("told", [True, False])
def test_only_a_state_that_foretells_acceptance_gains(told: bool) -> None:
    from target_states import CONTROL, DEPTHS, LINEAR, SIGNALS, fit_chances, foretell, linear, rows_at

    fitted, judged = prompts(0, told), prompts(1, told)
    numbers = from_mapping(StoppingNumbers, fit_stopping([fitted.trace], [costs()]).parameters, "fit")
    known = {SIGNALS: foretell(None, fitted, judged)}
    for name, width in ((CONTROL, 1 + DEPTHS), (LINEAR, None)):
        known[name] = foretell(fit_chances(linear, fitted, width), fitted, judged)
    rows = {row["reads"]: row for row in rows_at("dear drafts", costs(), numbers, fitted, judged, known)}
    assert rows[SIGNALS]["over_signals"] == 0
    assert (rows[LINEAR]["auc"] > rows[CONTROL]["auc"] + 0.1) == told
    assert (rows[LINEAR]["gain"] > rows[CONTROL]["gain"] + 0.05) == told
    assert all(row["gain"] <= row["hindsight"] + 1e-9 for row in rows.values())
