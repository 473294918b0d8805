"""The acceptance head of SpecDec++, fitted on a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.fitting.logistic import fit_logistic
from draftgauge.fitting.registry import register_fit
from draftgauge.policies.base import SignalArrays
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.specdec import FEATURES, NAME, dense_features
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.splits import prompt_keys
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

REJECTION_WEIGHT = 6.0
"""Weight of a rejected token in the cross-entropy, an accepted one weighing 1; ``w_rej`` of the paper."""


def fit_specdec(trace: Trace, gamma_max: int | None = None, seed: int = 0) -> FittedPolicy:
    """Fit the head: logistic regression with rejected tokens weighing 6 (Huang et al. 2024, section 4.2).

    The samples are the tokens that a verification judges, at every position of the trace: the accepted ones and the
    first rejected one, so that the head predicts acceptance given that the tokens before stand. Where the paper has the
    acceptance *probability* as a soft label, a greedy trace has 0 or 1.

    Args:
        trace: training prompts.
        gamma_max: longest draft to fit for; the trace's by default.
        seed: noted; the fit is a convex problem without randomness.

    Raises:
        TraceError: if the trace is shorter than ``gamma_max``, or its drafted tokens are all accepted or all rejected.
    """
    gamma_max = trace.gamma_max if gamma_max is None else gamma_max
    if not 1 <= gamma_max <= trace.gamma_max:
        raise TraceError(f"the trace holds drafts of 1 to {trace.gamma_max} tokens, {gamma_max} cannot be fitted on it")
    features, accepted = _samples(trace, gamma_max)
    if accepted.all() or not accepted.any():
        raise TraceError(
            f"{NAME} needs drafted tokens that were accepted and ones that were rejected; this trace has only one kind"
        )
    slopes, constant = fit_logistic(features, accepted, np.where(accepted, 1.0, REJECTION_WEIGHT))
    return FittedPolicy(
        policy=NAME,
        gamma_max=gamma_max,
        signals=FEATURES,
        parameters={"weights": slopes.tolist(), "bias": constant},
        provenance={
            "compression": trace.compression,
            "prompts": len(trace.prompts),
            "judged_tokens": len(accepted),
            "accepted_share": float(accepted.mean()),
            "rejection_weight": REJECTION_WEIGHT,
            "seed": seed,
        },
        trained_on=tuple(prompt_keys(trace)),
    )


def _samples(trace: Trace, gamma_max: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Features ``[tokens, features]`` of the judged tokens, and whether these were accepted ``[tokens]``."""
    signals = SignalArrays(*(values[:, :gamma_max] for values in (trace.confidence, trace.entropy, trace.margin)))
    depth = np.arange(1, gamma_max + 1)
    accepted = depth <= trace.accepted[:, None]
    judged = depth <= np.minimum(trace.accepted + 1, draft_caps(trace))[:, None]
    return dense_features(signals)[judged], accepted[judged]


@register_fit(NAME)
def _fit(traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int) -> FittedPolicy:
    return fit_specdec(traces[0], seed=seed)
