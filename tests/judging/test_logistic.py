"""Logistic regressions of fits: at their optimum, so that the order of sums changes nothing that is kept."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from draftgauge.core.errors import TraceError
from draftgauge.judging.fitting import fit_logistic


def test_it_is_at_the_optimum_whatever_the_order_of_the_examples() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(4000, 12)) * np.linspace(0.1, 30, 12)
    outcomes = rng.random(4000) < expit(terms[:, 0] - 0.5 * terms[:, 2] + 1)
    weights, constant = fit_logistic(terms, outcomes)
    residual = expit(terms @ weights + constant) - outcomes
    scaled = (terms - terms.mean(axis=0)) / terms.std(axis=0)
    assert scaled.T @ residual + weights * terms.std(axis=0) == pytest.approx(np.zeros(12), abs=1e-3)
    assert residual.sum() == pytest.approx(0, abs=1e-3)
    order = rng.permutation(4000)
    again, same = fit_logistic(terms[order], outcomes[order])
    assert again == pytest.approx(weights, abs=1e-9)
    assert same == pytest.approx(constant, abs=1e-9)


def test_outcomes_of_one_kind_are_refused() -> None:
    with pytest.raises(TraceError, match="no accepted and rejected tokens to fit on"):
        fit_logistic(np.zeros((3, 1)), np.ones(3, np.bool_))
