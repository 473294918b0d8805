"""The paper's predictors on what they have not seen: other prompts, another task, another compression."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.statistics.bootstrap import LEVEL, RESAMPLES, draw_counts
from draftgauge.studies.speckv import predictors
from draftgauge.studies.speckv.records import COMPRESSIONS, GAMMAS, TASKS, Floats, Ints, Mask, Records

Rows = list[dict[str, Any]]
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


def leave_one_out_rows(records: Records) -> Rows:
    """Fitted without one task, or without one compression, and scored on it; beside the MSE of always saying the
    others' mean rate.

    A left-out compression's prompts were all run at the other two, where the target says nearly the same. ``prompts``
    "seen" leaves that as it is; "held out" also withholds, fold by fold, the prompts that are scored.
    """
    steps = records.steps
    whole, folds = np.zeros(len(steps.rate), np.int64), prompt_folds(records)
    return [
        {"finding": f"leave_one_{kind}_out", "left_out": name, "model": model, "prompts": prompts}
        | _score_without(records, model, of_step == index, parts)
        for kind, prompts, names, of_step, parts in (
            ("task", "held out", TASKS, steps.task, whole),  # a prompt has one task
            ("compression", "seen", COMPRESSIONS, steps.compression, whole),
            ("compression", "held out", COMPRESSIONS, steps.compression, folds),
        )
        for index, name in enumerate(names)
        for model in (predictors.FAST, predictors.ACCURATE)
    ]


def _score_without(records: Records, model: str, out: Mask, parts: Ints) -> dict[str, float]:
    """Scores on the left-out steps; parts are predicted by a model that saw neither them nor (of several) that part."""
    rate, inputs = records.steps.rate, predictors.features(records.steps)
    predicted = np.empty(len(rate))
    for part in np.unique(parts):
        scored = out & (parts == part)
        seen = ~out if len(np.unique(parts)) == 1 else ~out & (parts != part)
        predicted[scored] = predictors.predicted_rate(predictors.fit(model, inputs[seen], rate[seen]), inputs[scored])
    correlation, error = predictors.scores(predicted[out], rate[out])
    return {
        "correlation": correlation,
        "mse": error,
        "mse_of_mean": float(np.mean((rate[out] - rate[~out].mean()) ** 2)),
    }


def prediction_rows(records: Records, expected: Floats) -> Rows:
    """Tokens a step that the held-out MLP predicts for always drafting gamma, beside what was measured.

    ``predicted`` asks it about all steps, as the paper does; ``predicted_where_drafted`` only about the steps that were
    drafted with that gamma, whose signals belong to it.
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
    n, sx, sy, sxx, syy, sxy = moments @ draw_counts(prompts, RESAMPLES, 0).T
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (n * sxy - sx * sy) / np.sqrt((n * sxx - sx**2) * (n * syy - sy**2))
    low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
