"""What can be fitted to traces, by the name of the policy."""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.core.errors import DraftgaugeError
from draftgauge.fitting.speckv import fit_speckv
from draftgauge.fitting.stopping import fit_stopping
from draftgauge.fitting.two_source import fit_two_source
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

FITS = {"speckv": fit_speckv, "stopping": fit_stopping, "two-source": fit_two_source}


def fit_policy(policy: str, traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int = 0) -> FittedPolicy:
    if policy not in FITS:
        raise DraftgaugeError(f"there is nothing to fit in policy {policy!r}; choose one of {', '.join(FITS)}")
    return FITS[policy](traces, costs, seed)
