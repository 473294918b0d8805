"""The network of SpecKV, fitted on traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPRegressor

from draftgauge.core.errors import TraceError
from draftgauge.judging.fitting.logistic import common_gamma_max
from draftgauge.judging.replay import replay_lengths
from draftgauge.judging.splits import keys_of
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.speckv import CANDIDATES, FEATURES, NAME, code_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace, draft_caps

UNITS = 16
ITERATIONS = 500

Floats = NDArray[np.float64]


def fit_speckv(traces: Sequence[Trace], costs: Sequence[CostCurve] = (), seed: int = 0) -> FittedPolicy:
    """Fit the network: one hidden layer of 16 ReLU units, squared error on the acceptance rate, features as they are.

    As published, every text is walked with each fixed candidate length. The steps of these walks are the samples, with
    the signals of the step before. A trace also knows what other candidates would have got, so each step gives a row
    for every candidate.
    """
    gamma_max = common_gamma_max(traces)
    if gamma_max < CANDIDATES[1]:
        raise TraceError(
            f"{NAME} chooses among {CANDIDATES}: it needs a trace of gamma_max {CANDIDATES[1]} or more, not {gamma_max}"
        )
    candidates = tuple(gamma for gamma in CANDIDATES if gamma <= gamma_max)
    features, rates = (np.concatenate(part) for part in zip(*(_samples(t, candidates) for t in traces), strict=True))
    if len(rates) == 0:
        raise TraceError(f"{NAME} learns from steps that follow each other; the texts of this trace are too short")
    model = MLPRegressor(hidden_layer_sizes=(UNITS,), max_iter=ITERATIONS, random_state=seed % 2**32)
    model.fit(features, rates)
    (hidden, output), (hidden_bias, output_bias) = model.coefs_, model.intercepts_
    network = {
        "hidden": hidden.tolist(),
        "hidden_bias": hidden_bias.tolist(),
        "output": output[:, 0].tolist(),
        "output_bias": float(output_bias[0]),
    }
    error = float(np.mean((model.predict(features) - rates) ** 2))
    scores = {"rows": len(rates), "mean_squared_error": error, "variance": float(rates.var())}
    compressions = [trace.compression for trace in traces]
    return FittedPolicy(
        policy=NAME,
        gamma_max=gamma_max,
        signals=FEATURES,
        parameters={"network": network, "compression": compressions[0], "fitted_on": compressions},
        provenance={"compressions": compressions, "seed": seed, "training": scores},
        trained_on=keys_of(traces),
    )


def _samples(trace: Trace, candidates: Sequence[int]) -> tuple[Floats, Floats]:
    """Features ``[rows, 6]`` and acceptance rates ``[rows]``."""
    code = float(code_of(trace.compression))
    summaries, targets = [], []
    for gamma in candidates:
        record = replay_lengths(trace, np.full(trace.positions, gamma)).record
        rows = record.rows(trace)
        follows = (record.prompt[1:] == record.prompt[:-1]) & (record.drafted[:-1] > 0)
        source, drafted = rows[:-1][follows], record.drafted[:-1][follows]
        within = np.arange(trace.gamma_max) < drafted[:, None]
        entropy, confidence = trace.entropy[source].astype(np.float64), trace.confidence[source].astype(np.float64)
        figures = (
            np.where(within, entropy, 0.0).sum(1) / drafted,
            np.where(within, confidence, 0.0).sum(1) / drafted,
            np.where(within, entropy, -np.inf).max(1),
            np.where(within, confidence, np.inf).min(1),
        )
        summaries.append(np.stack(figures, axis=1))
        targets.append(rows[1:][follows])
    signals, target = np.concatenate(summaries), np.concatenate(targets)
    most = draft_caps(trace)[target]
    features, rates = [], []
    for gamma in candidates:
        drafted = np.minimum(gamma, most)
        some = drafted > 0
        given = np.broadcast_to([code, float(gamma)], (int(some.sum()), 2))
        features.append(np.concatenate([signals[some], given], axis=1))
        rates.append(np.minimum(drafted, trace.accepted[target])[some] / drafted[some])
    return np.concatenate(features), np.concatenate(rates)
