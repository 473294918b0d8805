"""Logistic regressions of acceptance, and the stopping rule that is fitted by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import TraceError
from draftgauge.judging.splits import keys_of
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.stopping import SIGNALS, STOPPING, StoppingNumbers, logit
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, draft_caps

Floats = NDArray[np.float64]

DIGITS = 4  # of what is kept
SMALLEST_SCALE = 1e-9  # of a term: below, it is constant but for rounding
GRADIENT_TOLERANCE = 1e-8  # a mean over examples: sums in another order then lead to the same digits


def fit_logistic(terms: Floats, outcomes: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Weights ``[K]`` and the constant of a logistic regression.

    Args:
        terms: ``[n, K]``; brought to unit scale for the fit, and the weights back to that of the terms.
        outcomes: ``[n]``.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import, where most verbs fit nothing

    if outcomes.all() or not outcomes.any():
        raise TraceError("the traces hold no accepted and rejected tokens to fit on: record more prompts")
    mean, scale = terms.mean(axis=0), terms.std(axis=0)
    scale[scale < SMALLEST_SCALE] = 1.0
    model = LogisticRegression(solver="newton-cholesky", tol=GRADIENT_TOLERANCE)
    model.fit((terms - mean) / scale, outcomes)
    weights: Floats = model.coef_[0] / scale
    return weights, float(model.intercept_[0] - weights @ mean)


def judged_tokens(trace: Trace) -> NDArray[np.bool_]:
    """``[P, G]`` the drafted tokens that a verification judges: the accepted ones and the first rejected one."""
    return np.arange(1, trace.gamma_max + 1) <= np.minimum(trace.accepted + 1, draft_caps(trace))[:, None]


def accepted_by_depth(traces: Sequence[Trace]) -> tuple[float, ...]:
    """``[gamma_max]`` how often the token at each depth was accepted where those before it were, smoothed by one of
    each outcome. It is next to never at depths that no draft reached, as past the end of a block."""
    judged = sum(judged_tokens(trace).sum(axis=0) for trace in traces)
    depth = np.arange(1, traces[0].gamma_max + 1)
    accepted = sum((judged_tokens(trace) & (depth <= trace.accepted[:, None])).sum(axis=0) for trace in traces)
    rates = np.where(judged > 0, (accepted + 1) / (judged + 2), 0)
    return tuple(np.round(rates, DIGITS).clip(10.0**-DIGITS).tolist())


def common_gamma_max(traces: Sequence[Trace]) -> int:
    widths = {trace.gamma_max for trace in traces}
    if len(widths) != 1:
        raise TraceError(f"fit on traces of one gamma_max, not of {sorted(widths) or 'none'}")
    return widths.pop()


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
