"""The networks of SpecKV in its two causal readings, fitted on traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPRegressor

from draftgauge.core.errors import TraceError
from draftgauge.fitting.registry import register_fit
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.speckv import CANDIDATES, COMPRESSION_CODES, FEATURES, NAME, Reading
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import replay_lengths
from draftgauge.replaying.splits import keys_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

UNITS = 16
_ITERATIONS = 500

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def fit_speckv(traces: Trace | Sequence[Trace], reading: Reading = "previous", seed: int = 0) -> FittedPolicy:
    """Fit both networks: one hidden layer of 16 ReLU units, squared error on the acceptance rate, features as they are.

    As published, every text is walked with each fixed candidate length; the steps of these walks are the samples. A
    trace also knows what the other candidates would have got at each step, so each gives a row for every candidate. For
    the reading "previous" the signals are those of the step before, for "two" those of the step's first two tokens.

    Args:
        traces: training prompts; several compressions of one pair make the network's compression feature mean
            something.
        reading: the one that the policy will use.
        seed: of the networks' first weights and of the order of the samples.

    Raises:
        TraceError: if the traces are shorter than the shortest candidates, differ in ``gamma_max``, or hold no steps to
            learn from.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    widths = {trace.gamma_max for trace in traces}
    if len(widths) != 1:
        raise TraceError(f"the traces must have one gamma_max, not {sorted(widths)}")
    gamma_max = widths.pop()
    if gamma_max < CANDIDATES[1]:
        raise TraceError(
            f"{NAME} chooses among {CANDIDATES}: it needs a trace of gamma_max {CANDIDATES[1]} or more, not {gamma_max}"
        )
    candidates = tuple(gamma for gamma in CANDIDATES if gamma <= gamma_max)
    networks, scores = {}, {}
    for kind in ("previous", "two"):
        parts = [_samples(trace, candidates, kind) for trace in traces]
        features, rates = (np.concatenate(part) for part in zip(*parts, strict=True))
        if len(rates) == 0:
            raise TraceError(f"{NAME} learns from steps that follow each other; the texts of this trace are too short")
        networks[kind], scores[kind] = _fit(features, rates, seed)
    compressions = [trace.compression for trace in traces]
    return FittedPolicy(
        policy=NAME,
        gamma_max=gamma_max,
        signals=FEATURES,
        parameters=networks | {"reading": reading, "compression": compressions[0], "fitted_on": compressions},
        provenance={"compressions": compressions, "seed": seed, "training": scores},
        trained_on=keys_of(traces),
    )


def _fit(features: Floats, rates: Floats, seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The numbers of a network, and how it fits its own samples (no measure of anything but the fit)."""
    model = MLPRegressor(hidden_layer_sizes=(UNITS,), max_iter=_ITERATIONS, random_state=seed).fit(features, rates)
    (hidden, output), (hidden_bias, output_bias) = model.coefs_, model.intercepts_
    numbers = {
        "hidden": hidden.tolist(),
        "hidden_bias": hidden_bias.tolist(),
        "output": output[:, 0].tolist(),
        "output_bias": float(output_bias[0]),
    }
    error = float(np.mean((model.predict(features) - rates) ** 2))
    return numbers, {"rows": len(rates), "mean_squared_error": error, "variance": float(rates.var())}


def _samples(trace: Trace, candidates: Sequence[int], reading: str) -> tuple[Floats, Floats]:
    """Features ``[rows, 6]`` and acceptance rates ``[rows]``."""
    summaries, targets = zip(*(_walk(trace, gamma, reading) for gamma in candidates), strict=True)
    signals, target = np.concatenate(summaries), np.concatenate(targets)
    most = draft_caps(trace)[target]
    if trace.compression not in COMPRESSION_CODES:
        raise TraceError(
            f"SpecKV's network reads whether the target is in full precision, int8 or nf4, and this one is "
            f"{trace.compression}: fit another policy"
        )
    code = float(COMPRESSION_CODES[trace.compression])
    features, rates = [], []
    for gamma in candidates:
        drafted = np.minimum(gamma, most)
        some = drafted > 0
        given = np.broadcast_to([code, float(gamma)], (int(some.sum()), 2))
        features.append(np.concatenate([signals[some], given], axis=1))
        rates.append(np.minimum(drafted, trace.accepted[target])[some] / drafted[some])
    return np.concatenate(features), np.concatenate(rates)


def _walk(trace: Trace, gamma: int, reading: str) -> tuple[Floats, Ints]:
    """Walk with drafts of ``gamma`` tokens: signal figures ``[steps, 4]`` and the rows they belong to ``[steps]``."""
    record = replay_lengths(trace, np.full(trace.positions, gamma)).record
    rows = record.rows(trace)
    if reading == "two":
        source, target, drafted = rows, rows, np.minimum(record.drafted, 2)
    else:
        follows = record.prompt[1:] == record.prompt[:-1]
        source, target, drafted = rows[:-1][follows], rows[1:][follows], record.drafted[:-1][follows]
    some = drafted > 0
    return _summaries(trace, source[some], drafted[some]), target[some]


def _summaries(trace: Trace, rows: Ints, drafted: Ints) -> Floats:
    """``[rows, 4]`` mean entropy, mean confidence, highest entropy and lowest confidence of the drafted tokens."""
    within = np.arange(trace.gamma_max) < drafted[:, None]
    entropy, confidence = trace.entropy[rows].astype(np.float64), trace.confidence[rows].astype(np.float64)
    figures = (
        np.where(within, entropy, 0.0).sum(1) / drafted,
        np.where(within, confidence, 0.0).sum(1) / drafted,
        np.where(within, entropy, -np.inf).max(1),
        np.where(within, confidence, np.inf).min(1),
    )
    return np.stack(figures, axis=1)


@register_fit(NAME)
def _fit_speckv(traces: Sequence[Trace], costs: Sequence[CostCurve], seed: int) -> FittedPolicy:
    return fit_speckv(traces, seed=seed)
