"""SpecKV (arXiv 2605.02888) as published: its tables 1 to 3, its intervals and its test, from the author's records.

Everything here is the paper's own reading: candidates are compared on 20% of the steps, then fitted again on *all*
steps. The policies are scored on those 20% by what the refitted model predicts. Beside the recomputed figures stand
those of the paper and of the tables published with it under the MIT licence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draftgauge.studies.speckv import predictors
from draftgauge.studies.speckv.records import (
    COMPRESSIONS,
    GAMMAS,
    SIGNALS,
    TASKS,
    Floats,
    Ints,
    Mask,
    Records,
    Rows,
    of_compression,
)

POLICIES = ("fixed-4", "fixed-best", "task-oracle", "SpecKV-fast", "SpecKV-accurate")
INTERVAL_RESAMPLES, TEST_RESAMPLES = 5_000, 10_000
AT_ONCE = 1_000  # resamples held in memory together
PUBLISHED_POLICY_TOKENS: dict[str, dict[str, float]] = {
    "fixed-4": {"fp16": 3.67, "int8": 3.75, "nf4": 3.78, "all": 3.73},
    "fixed-best": {"fp16": 5.67, "int8": 5.84, "nf4": 5.92, "all": 5.81},
    "task-oracle": {"fp16": 2.68, "int8": 5.43, "nf4": 4.09, "all": 4.07},
    "SpecKV-fast": {"fp16": 5.68, "int8": 5.85, "nf4": 5.93, "all": 5.82},
    "SpecKV-accurate": {"fp16": 6.26, "int8": 6.36, "nf4": 6.55, "all": 6.39},
}
PUBLISHED_INTERVALS: dict[str, tuple[float, float]] = {
    "fixed-4": (3.666, 3.794),
    "fixed-best": (5.673, 5.952),
    "task-oracle": (3.949, 4.188),
    "SpecKV-fast": (5.690, 5.963),
    "SpecKV-accurate": (6.220, 6.560),
}
PUBLISHED_PREDICTORS: dict[str, dict[str, Any]] = {
    "MLP-16": {"published_correlation": 0.6853, "published_mse": 0.0896, "published_decision_ms": 0.336},
    "RF-100": {"published_correlation": 0.8345, "published_decision_ms": 21.359},
}
PUBLISHED_SIGNALS = {"mean_draft_entropy": -0.56, "mean_draft_confidence": 0.56}
"""The paper says "about 0.56" of both, without more digits."""


def reproduce_paper(records: Records) -> Rows:
    """Fit, score and test as published.

    Returns:
        Flat rows, by ``table``: "policies" (table 1, with 95% intervals over all steps) and "breakdown" (table 2).
        "predictors" is table 3 and the overhead. Others are "improvement", "correlations" of signals with the
        acceptance rate, and "choices" of gamma. ``published`` is the paper's figure where it gives one.
    """
    steps = records.steps
    inputs, (train, test) = predictors.features(steps), predictors.split(steps)
    models = [predictors.fit(name, inputs, steps.rate) for name in (predictors.FAST, predictors.ACCURATE)]
    fast, accurate = (predictors.expected_tokens(model, inputs[test]) for model in models)  # [T, 4]
    # All policies but SpecKV-accurate are scored by the fast model.
    fixed = np.take_along_axis(fast, np.searchsorted(GAMMAS, gammas_of(records)[test]), axis=1)  # [T, 3]
    expected = dict(zip(POLICIES, [*fixed.T, fast.max(axis=1), accurate.max(axis=1)], strict=True))
    choice = np.array(GAMMAS)[fast.argmax(axis=1)]
    masks = of_compression(steps.compression[test])
    by_task = [
        (name, task, mask & (steps.task[test] == t)) for name, mask in masks[:-1] for t, task in enumerate(TASKS)
    ]
    choices = [
        {"table": "choices", "compression": name, "gamma": gamma, "share": float(np.mean(choice[mask] == gamma))}
        for name, mask in masks
        for gamma in GAMMAS
    ]
    signals = [
        {"table": "correlations", "signal": name, "correlation": predictors.scores(inputs[:, column], steps.rate)[0]}
        | {"published": PUBLISHED_SIGNALS.get(name)}
        for column, name in enumerate(SIGNALS)
    ]
    return [
        *_policy_rows(expected, masks),
        *(_breakdown_row(expected, *cell) for cell in by_task),
        *_predictor_rows(inputs, steps.rate, train, test),
        *choices,
        *signals,
    ]


def gammas_of(records: Records) -> Ints:
    """``[S, 3]`` the draft length of fixed-4, fixed-best and task-oracle at each step.

    ``fixed-best`` is the gamma with the most measured tokens per *step* of a compression, which is 8 by the nature of
    the measure. ``task-oracle`` is the one with the most measured tokens per *second* of a compression and task.
    """
    steps = records.steps
    means = [
        [float(steps.tokens[(steps.compression == c) & (steps.gamma == gamma)].mean()) for gamma in GAMMAS]
        for c in range(len(COMPRESSIONS))
    ]
    best = np.array(GAMMAS)[np.argmax(means, axis=1)]
    oracle = task_oracle(records)
    four = np.full(len(steps.gamma), 4)
    return np.column_stack([four, best[steps.compression], oracle[steps.compression, steps.task]])


def task_oracle(records: Records) -> Ints:
    """``[3, 4]`` fastest gamma of each compression and task, the mean over prompts deciding."""
    runs, speed = records.runs, records.runs.tokens_per_second
    table = [
        [
            [speed[(runs.compression == c) & (runs.task == t) & (runs.gamma == gamma)].mean() for gamma in GAMMAS]
            for t in range(len(TASKS))
        ]
        for c in range(len(COMPRESSIONS))
    ]
    return np.asarray(np.array(GAMMAS)[np.argmax(table, axis=2)])


def _predictor_rows(inputs: Floats, rate: Floats, train: Ints, test: Ints) -> Rows:
    rows: Rows = []
    roles = {predictors.FAST: "fast", predictors.ACCURATE: "accurate"}
    for name in predictors.CANDIDATES:
        model = predictors.fit(name, inputs[train], rate[train])
        correlation, error = predictors.scores(predictors.predicted_rate(model, inputs[test]), rate[test])
        row: dict[str, Any] = {"table": "predictors", "model": name, "role": roles.get(name)}
        row |= {"test_correlation": correlation, "test_mse": error}
        row["decision_ms"] = predictors.decision_ms(model, inputs[test])
        rows.append(row | PUBLISHED_PREDICTORS.get(name, {}))
    return rows


def _policy_rows(expected: dict[str, Floats], masks: list[tuple[str, Mask]]) -> Rows:
    """Table 1 with the author's percentile intervals over steps, then the test of SpecKV-fast against fixed-4."""
    generator = np.random.RandomState(predictors.SEED)  # one legacy generator for all gives the published ends
    rows: Rows = []
    for policy, tokens in expected.items():
        means = np.sort(_resampled_means(tokens, INTERVAL_RESAMPLES, generator))
        low, high = (float(means[int(share * INTERVAL_RESAMPLES)]) for share in (0.025, 0.975))
        for name, mask in masks:
            row: dict[str, Any] = {"table": "policies", "policy": policy, "compression": name}
            row |= {"expected_tokens": float(tokens[mask].mean()), "published": PUBLISHED_POLICY_TOKENS[policy][name]}
            rows.append(row)
        published_low, published_high = PUBLISHED_INTERVALS[policy]
        rows[-1] |= {"low": low, "high": high, "published_low": published_low, "published_high": published_high}
    fast, base = expected["SpecKV-fast"], expected["fixed-4"]
    means = _resampled_means(fast - base, TEST_RESAMPLES, generator)
    low, high = np.percentile(means, [2.5, 97.5])
    row = {"table": "improvement", "percent": 100 * (fast.mean() / base.mean() - 1), "published": 56.0}
    row |= {"p_value": float(np.mean(means <= 0)), "resamples": TEST_RESAMPLES}
    return [*rows, row | {"difference": float((fast - base).mean()), "low": low, "high": high}]


def _breakdown_row(expected: dict[str, Floats], compression: str, task: str, mask: Mask) -> dict[str, Any]:
    base, fast = (float(expected[policy][mask].mean()) for policy in ("fixed-4", "SpecKV-fast"))
    row = {"table": "breakdown", "compression": compression, "task": task, "fixed_4": base, "speckv_fast": fast}
    return row | {"percent": 100 * (fast / base - 1)}


def _resampled_means(values: Floats, resamples: int, generator: np.random.RandomState) -> Floats:
    """``[resamples]`` means of as many steps drawn with replacement; the same draws as ``choice`` in a loop."""
    parts = [
        values[generator.randint(0, len(values), (AT_ONCE, len(values)))].mean(axis=1)
        for _ in range(resamples // AT_ONCE)
    ]
    return np.concatenate(parts)
