"""What the fitted logistic models of acceptance have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

Floats = NDArray[np.float64]

REGULARISATION = 0.3
"""``C`` of the logistic regressions, on standardised terms."""
DIGITS = 4
LEAST_EXAMPLES = 5
"""Examples that a token needs to have offsets of its own."""
UNVISITED = 0.25
"""Weight of positions that the policy fitted before does not come to: they still tell how the chances depend on the
signals.
"""
SHIFT_TOLERANCE = 1e-12  # of logits
GRADIENT_TOLERANCE = 1e-8  # a mean over examples


def fit_logistic(
    terms: Floats, outcomes: NDArray[np.bool_], weight: Floats | None = None, regularisation: float = REGULARISATION
) -> tuple[Floats, float]:
    """Weights ``[K]`` and the constant of a logistic regression, with a prior on the weights.

    Newton's method goes on until nothing is left to gain, so that sums in another order (more threads, another
    processor) lead to the same numbers.

    Args:
        terms: ``[n, K]``, of about the same scale.
        outcomes: ``[n]``, both of them there.
        weight: ``[n]`` of the examples; all alike without.
        regularisation: ``C``, the inverse of the prior's strength.
    """
    model = LogisticRegression(C=regularisation, solver="newton-cholesky", tol=GRADIENT_TOLERANCE)
    model.fit(terms, outcomes, weight)
    return model.coef_[0], float(model.intercept_[0])


def fit_scaled(terms: Floats, outcomes: NDArray[np.bool_], weight: Floats) -> tuple[Floats, float]:
    """:func:`fit_logistic` of terms brought to unit scale; the weights are those of the terms as they are."""
    scale = terms.std(axis=0)
    scale[scale == 0] = 1.0
    weights, constant = fit_logistic(terms / scale, outcomes, weight)
    return weights / scale, constant


def mean_shift(logits: Floats, stood: NDArray[np.bool_]) -> float:
    """The shift of some logits at which their mean chance is the share that stood; 0 if all went one way."""
    if not stood.any() or stood.all():
        return 0.0
    share = float(stood.mean())
    wanted = math.log(share / (1 - share))
    least, most = wanted - float(logits.max()), wanted - float(logits.min())
    if most - least < SHIFT_TOLERANCE:
        return least

    def excess(shift: float) -> float:
        return float(expit(logits + shift).mean()) - share

    return float(brentq(excess, least - SHIFT_TOLERANCE, most + SHIFT_TOLERANCE, xtol=SHIFT_TOLERANCE))


def spread_design(terms: tuple[Sequence[Any], Sequence[Any]], classes: NDArray[np.int64], count: int) -> Floats:
    """``[n, K]`` all terms, those by class spread over one block a class.

    Args:
        terms: those whose weights depend on the class, and the others; numbers or ``[n]`` each.
        classes: ``[n]``.
        count: of classes.
    """
    rows = len(classes)
    by_class, shared = (
        np.stack([np.broadcast_to(np.asarray(value, np.float64), rows) for value in values], axis=1) for values in terms
    )
    spread = np.zeros((rows, count, by_class.shape[1]))
    spread[np.arange(rows), classes] = by_class
    return np.concatenate([spread.reshape(rows, count * by_class.shape[1]), shared], axis=1)
