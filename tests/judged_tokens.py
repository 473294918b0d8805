"""Predicted chances of acceptance beside what became of the drafted tokens that the target came to judge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from draftgauge.policies.base import Policy
from draftgauge.replaying.simulate import replay
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


class Judged(NamedTuple):
    predicted: np.ndarray
    accepted: np.ndarray


def visited(trace: Trace, policy: Policy, costs: CostCurve) -> np.ndarray:
    """``[P, G]`` the tokens that a policy drafts."""
    record = replay(trace, policy, costs).record
    drafted = np.zeros(trace.positions, np.int64)
    drafted[record.rows(trace)] = record.drafted
    return np.arange(trace.gamma_max) < drafted[:, None]


def starts(trace: Trace, policy: Policy, costs: CostCurve) -> np.ndarray:
    """``[P, G]`` the first tokens from where the steps of a policy start, drafted or not."""
    chosen = np.zeros((trace.positions, trace.gamma_max), np.bool_)
    chosen[replay(trace, policy, costs).record.rows(trace), 0] = True
    return chosen


def judged(trace: Trace, predicted: np.ndarray, among: np.ndarray) -> Judged:
    depths = np.arange(1, trace.gamma_max + 1)
    accepted = trace.accepted[:, None]
    chosen = (
        (accepted >= depths - 1)
        & (depths <= np.minimum(trace.drafted, remaining_rows(trace.offsets))[:, None])
        & ~np.isnan(predicted)
        & among
    )
    return Judged(predicted[chosen], (accepted >= depths)[chosen])
