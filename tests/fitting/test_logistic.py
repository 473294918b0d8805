"""Logistic regressions of fits: at their optimum, so that the order of sums changes nothing that is kept."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from draftgauge.fitting.logistic import REGULARISATION, fit_logistic


def test_it_is_at_the_optimum_whatever_the_order_of_the_examples() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(4000, 12))
    terms[:, 1] = terms[:, 0] + 0.01 * rng.normal(size=4000)  # nearly the same
    outcomes = rng.random(4000) < expit(terms[:, 0] - 0.5 * terms[:, 2] + 1)
    weight = rng.uniform(0.1, 2.0, 4000)
    weights, constant = fit_logistic(terms, outcomes, weight)
    residual = weight * (expit(terms @ weights + constant) - outcomes)
    assert terms.T @ residual + weights / REGULARISATION == pytest.approx(np.zeros(12), abs=1e-3)
    assert residual.sum() == pytest.approx(0, abs=1e-3)
    order = rng.permutation(4000)
    again, same = fit_logistic(terms[order], outcomes[order], weight[order])
    assert again == pytest.approx(weights, abs=1e-9)
    assert same == pytest.approx(constant, abs=1e-9)


def test_the_prior_is_as_asked() -> None:
    terms, outcomes = np.array([[1.0], [1.0], [-1.0], [-1.0]]), np.array([True, True, False, False])
    (free,), _ = fit_logistic(terms, outcomes, regularisation=10.0)
    (held,), _ = fit_logistic(terms, outcomes, regularisation=0.1)
    assert 0 < held < free
