"""The paper's candidates for predicting a step's acceptance rate, fitted and timed as published, and held out.

Settings are those of the author's evaluation notebook: features are not scaled, RF-10 is cut at depth 8, predictions
are clipped to 0..1 before scoring. Versions 1.5.2 and 1.9.1 of scikit-learn give every published figure of Ridge and
the MLPs to the last digit. Forests differ by version in the fourth digit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor

from draftgauge.judging.statistics.bootstrap import CONFIDENCE, RESAMPLES, draw_counts
from draftgauge.studies.speckv.records import COMPRESSIONS, GAMMAS, SIGNALS, TASKS, Floats, Ints, Records, Rows, Steps

SEED = 42
TEST_SHARE = 0.2
FEATURES = (*SIGNALS, "compression", "gamma")
GAMMA_COLUMN = FEATURES.index("gamma")
FAST, ACCURATE = "MLP-16", "RF-100"
"""SpecKV-fast is the best correlation under 1 ms a decision.

That is a wall-clock rule: the paper's choice is kept on every machine.
"""

DECISIONS, WARM_UP, TIME_LIMIT = 1000, 20, 2.0

CANDIDATES: dict[str, Callable[[], Any]] = {
    "Ridge": lambda: Ridge(alpha=1.0),
    "MLP-16": lambda: MLPRegressor(hidden_layer_sizes=(16,), max_iter=500, random_state=SEED),
    "MLP-32": lambda: MLPRegressor(hidden_layer_sizes=(32,), max_iter=500, random_state=SEED),
    "RF-10": lambda: RandomForestRegressor(n_estimators=10, max_depth=8, random_state=SEED),
    "RF-100": lambda: RandomForestRegressor(n_estimators=100, random_state=SEED),
}


def features(steps: Steps) -> Floats:
    """``[S, 6]`` columns as in :data:`FEATURES`; the compression is its index 0, 1, 2."""
    return np.column_stack([steps.signals, steps.compression, steps.gamma]).astype(np.float64)


def split(steps: Steps) -> tuple[Ints, Ints]:
    """Indices of the paper's training and test steps: 80/20, stratified by compression and task.

    Steps, not prompts, are split.
    """
    strata = [f"{COMPRESSIONS[c]}_{TASKS[t]}" for c, t in zip(steps.compression, steps.task, strict=True)]
    train, test = train_test_split(np.arange(len(strata)), test_size=TEST_SHARE, random_state=SEED, stratify=strata)
    return train, test


def fit(name: str, inputs: Floats, rate: Floats) -> Any:
    """A candidate fitted to acceptance rates ``[S]``."""
    model = CANDIDATES[name]()
    if not isinstance(model, RandomForestRegressor):
        return model.fit(inputs, rate)
    # Trees have seeds of their own and may grow side by side; predictions are summed over them, in one order on one
    # thread.
    return model.set_params(n_jobs=-1).fit(inputs, rate).set_params(n_jobs=None)


def predicted_rate(model: Any, inputs: Floats) -> Floats:
    """``[S]`` predicted acceptance rate, clipped to 0..1."""
    return np.clip(model.predict(inputs), 0.0, 1.0)


def expected_tokens(model: Any, inputs: Floats) -> Floats:
    """``[S, 4]`` the controller's objective for each gamma of :data:`GAMMAS`: predicted rate x gamma + 1."""
    columns = []
    for gamma in GAMMAS:
        asked = inputs.copy()
        asked[:, GAMMA_COLUMN] = gamma
        columns.append(predicted_rate(model, asked) * gamma + 1)
    return np.column_stack(columns)


def scores(predicted: Floats, rate: Floats) -> tuple[float, float]:
    """Pearson correlation (NaN where either is constant) and mean squared error."""
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = float(np.corrcoef(predicted, rate)[0, 1])
    return correlation, float(np.mean((predicted - rate) ** 2))


def decision_ms(model: Any, inputs: Floats) -> float:
    """Mean wall-clock milliseconds of one decision, which is one prediction for each gamma.

    As published, but for the number of decisions: 1,000, or as many as two seconds allow.
    """
    sample = inputs[:1].copy()
    for _ in range(WARM_UP):
        model.predict(sample)
    begun, done = time.perf_counter(), 0
    while done < DECISIONS and time.perf_counter() - begun < TIME_LIMIT:
        for gamma in GAMMAS:
            sample[0, GAMMA_COLUMN] = gamma
            model.predict(sample)
        done += 1
    return 1e3 * (time.perf_counter() - begun) / done


FOLDS = 5


def prompt_folds(records: Records) -> Ints:
    """``[S]`` fold of each step: the n-th prompt of every task goes to fold n modulo 5, so none is on both sides."""
    runs = records.runs
    task_of = dict(zip(runs.prompt.tolist(), runs.task.tolist(), strict=True))
    rank = np.array([sum(task_of[other] == task_of[p] for other in range(p)) for p in range(records.prompts)])
    return (rank % FOLDS)[records.prompt_of_step]


def held_out_tokens(records: Records, name: str) -> Floats:
    """``[S, 4]`` expected tokens a step at each gamma, by the candidate fitted without the step's own prompt."""
    inputs, folds = features(records.steps), prompt_folds(records)
    expected = np.empty((len(folds), len(GAMMAS)))
    for fold in np.unique(folds):
        inside = folds == fold
        expected[inside] = expected_tokens(fit(name, inputs[~inside], records.steps.rate[~inside]), inputs[inside])
    return expected


def held_out_rows(records: Records, expected: dict[str, Floats], paper: Rows) -> Rows:
    """Correlation and MSE of each candidate with steps held out (the paper's rows) and with prompts held out, by
    ``expected``: candidate -> ``[S, 4]`` from :func:`held_out_tokens`."""
    published = {row["model"]: row for row in paper if row["table"] == "predictors"}
    rows: Rows = []
    for name, tokens in expected.items():
        head = {"finding": "held_out", "model": name}
        of_steps = {"correlation": published[name]["test_correlation"], "mse": published[name]["test_mse"]}
        rows.append(head | {"held_out": "steps"} | of_steps)
        own = own_rate(records, tokens)
        correlation, error = scores(own, records.steps.rate)
        low, high = correlation_interval(own, records.steps.rate, records.prompt_of_step, records.prompts)
        rows.append(head | {"held_out": "prompts", "correlation": correlation, "low": low, "high": high, "mse": error})
    return rows


def prediction_rows(records: Records, expected: Floats) -> Rows:
    """Tokens a step that the held-out MLP predicts for always drafting gamma, beside what was measured.

    ``predicted`` asks it about all steps, as the paper does. ``predicted_where_drafted`` asks only about steps drafted
    with that gamma, whose signals belong to it.
    """
    steps = records.steps
    rows: Rows = []
    for gamma, column in zip(GAMMAS, expected.T, strict=True):
        own = steps.gamma == gamma
        row: dict[str, Any] = {"finding": "predicted_and_measured", "gamma": gamma, "predicted": float(column.mean())}
        row["predicted_where_drafted"] = float(column[own].mean())
        rows.append(row | {"measured": float(steps.tokens[own].mean())})
    return rows


def own_rate(records: Records, expected: Floats) -> Floats:
    """``[S]`` the predicted rate at the gamma that each step was drafted with."""
    gamma = records.steps.gamma
    at_own = np.take_along_axis(expected, np.searchsorted(GAMMAS, gamma)[:, None], axis=1)[:, 0]
    return np.asarray((at_own - 1) / gamma)


def correlation_interval(x: Floats, y: Floats, prompt: Ints, prompts: int) -> tuple[float, float]:
    """Ends of the 95% interval of a correlation over steps, resampling prompts with all their steps."""
    moments = np.stack(
        [np.bincount(prompt, values, prompts) for values in (np.ones(len(x)), x, y, x * x, y * y, x * y)]
    )
    n, sx, sy, sxx, syy, sxy = moments @ draw_counts(prompts, RESAMPLES).T
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (n * sxy - sx * sy) / np.sqrt((n * sxx - sx**2) * (n * syy - sy**2))
    low, high = np.nanquantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
