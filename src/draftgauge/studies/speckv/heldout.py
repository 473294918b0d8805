"""The paper's predictors on prompts that they were not fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.judging.statistics.bootstrap import CONFIDENCE, RESAMPLES, draw_counts
from draftgauge.studies.speckv import predictors
from draftgauge.studies.speckv.records import GAMMAS, Floats, Ints, Records, Rows

FOLDS = 5


def prompt_folds(records: Records) -> Ints:
    """``[S]`` fold of each step: the n-th prompt of every task goes to fold n modulo 5, so none is on both sides."""
    runs = records.runs
    task_of = dict(zip(runs.prompt.tolist(), runs.task.tolist(), strict=True))
    rank = np.array([sum(task_of[other] == task_of[p] for other in range(p)) for p in range(records.prompts)])
    return (rank % FOLDS)[records.prompt_of_step]


def held_out_tokens(records: Records, name: str) -> Floats:
    """``[S, 4]`` expected tokens a step at each gamma, by the candidate fitted without the step's own prompt."""
    inputs, folds = predictors.features(records.steps), prompt_folds(records)
    expected = np.empty((len(folds), len(GAMMAS)))
    for fold in np.unique(folds):
        inside = folds == fold
        expected[inside] = predictors.expected_tokens(
            predictors.fit(name, inputs[~inside], records.steps.rate[~inside]), inputs[inside]
        )
    return expected


def held_out_rows(records: Records, expected: dict[str, Floats], paper: Rows) -> Rows:
    """Correlation and MSE of each candidate with steps held out (the paper's rows) and with prompts held out, by
    ``expected``: candidate -> ``[S, 4]`` from :func:`held_out_tokens`."""
    published = {row["model"]: row for row in paper if row["table"] == "predictors"}
    rows: Rows = []
    for name, tokens in expected.items():
        head = {"finding": "held_out", "model": name}
        scores = {"correlation": published[name]["test_correlation"], "mse": published[name]["test_mse"]}
        rows.append(head | {"held_out": "steps"} | scores)
        own = own_rate(records, tokens)
        correlation, error = predictors.scores(own, records.steps.rate)
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
