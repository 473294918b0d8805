"""Fit throughput-optimal stopping to dense traces; see :mod:`draftgauge.policies.stopping` for what is fitted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftgauge.core.config import to_mapping
from draftgauge.judging.fitting.logistic import DIGITS, accepted_by_depth, common_gamma_max, fit_logistic, judged_tokens
from draftgauge.judging.splits import keys_of
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.stopping import SIGNALS, STOPPING, StoppingNumbers, logit
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace


def fit_stopping(traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int = 0) -> FittedPolicy:
    """Calibrate the drafter's confidence on some traces.

    Every drafted token that was judged, that is, all up to the first rejected one of each position, is an example.

    Args:
        traces: dense, of the prompts to fit on, one for each pair or compression; of one ``gamma_max``.
        costs: not needed, as the numbers hold at any; every fit is given them.
    """
    gamma_max = common_gamma_max(traces)
    logits, accepted = [], []
    for trace in traces:
        judged = judged_tokens(trace)
        logits.append(logit(trace.confidence[judged].astype(np.float64)))
        accepted.append((np.arange(1, gamma_max + 1) <= trace.accepted[:, None])[judged])
    weights, constant = fit_logistic(np.concatenate(logits)[:, None], np.concatenate(accepted))
    numbers = StoppingNumbers(round(constant, DIGITS), round(float(weights[0]), DIGITS), accepted_by_depth(traces))
    return FittedPolicy(STOPPING, gamma_max, SIGNALS, to_mapping(numbers), trained_on=keys_of(traces))
