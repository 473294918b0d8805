"""SpecKV (arXiv 2605.02888) as published: its tables 1 to 3, its intervals and its test, from the author's records.

Everything here is the paper's own reading: candidates are compared on 20% of the steps, then fitted again on *all*
steps, and the policies are scored on those 20% by what the refitted model predicts.
:mod:`draftgauge.studies.speckv.honest` says what the records themselves say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.studies.speckv import predictors
from draftgauge.studies.speckv.published import (
    IMPORTANCE,
    INTERVALS,
    POLICY_TOKENS,
    PREDICTORS,
    SIGNAL_CORRELATIONS,
    TASK_GAMMA,
)
from draftgauge.studies.speckv.records import ALL, COMPRESSIONS, GAMMAS, SIGNALS, TASKS, Floats, Ints, Records

POLICIES = ("fixed-4", "fixed-best", "task-oracle", "SpecKV-fast", "SpecKV-accurate")
INTERVAL_RESAMPLES, TEST_RESAMPLES = 5_000, 10_000
_AT_ONCE = 1_000  # resamples held in memory together

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class _Scored:
    """The policies on the paper's ``T`` test steps.

    Attributes:
        compression, task: ``[T]`` indices.
        expected: policy -> ``[T]`` expected tokens a step, by the paper's scoring.
        choice: ``[T]`` gamma that SpecKV-fast chooses.
    """

    compression: Ints
    task: Ints
    expected: Mapping[str, Floats]
    choice: Ints

    def by_compression(self) -> list[tuple[str, NDArray[np.bool_]]]:
        """A mask of the test steps for each compression, and for all."""
        masks = [(name, self.compression == c) for c, name in enumerate(COMPRESSIONS)]
        return [*masks, (ALL, np.ones(len(self.compression), np.bool_))]


def reproduce_paper(records: Records) -> Rows:
    """Fit, score and test as published.

    Returns:
        Flat rows: table "policies" (table 1, with 95% intervals over all steps), "breakdown" (table 2), "predictors"
        (table 3 and the overhead), "improvement", "correlations" of signals with the acceptance rate, "importance" of
        features, "choices" of gamma. ``published`` is the paper's figure where it gives one.
    """
    steps = records.steps
    inputs, (train, test) = predictors.features(steps), predictors.split(steps)
    refitted = {name: predictors.fit(name, inputs, steps.rate) for name in (predictors.FAST, predictors.ACCURATE)}
    fast, accurate = (predictors.expected_tokens(model, inputs[test]) for model in refitted.values())
    scored = _Scored(
        compression=steps.compression[test],
        task=steps.task[test],
        expected=_policy_tokens(fast, accurate, gammas_of(records)[test]),
        choice=np.array(GAMMAS)[fast.argmax(axis=1)],
    )
    return [
        *_policy_rows(scored),
        *_breakdown_rows(scored),
        *_predictor_rows(inputs, steps.rate, train, test),
        *_choice_rows(scored),
        *_signal_rows(inputs, steps.rate),
    ]


def gammas_of(records: Records) -> Ints:
    """``[S, 3]`` the draft length of fixed-4, fixed-best and task-oracle at each step.

    fixed-best is the gamma with the most measured tokens a *step* of a compression, which is 8 by the nature of the
    measure. task-oracle is the one with the most measured tokens a *second* of a compression and task: from the
    experiments, or as published where they were not given.
    """
    steps = records.steps
    means = [
        [float(steps.tokens[(steps.compression == c) & (steps.gamma == gamma)].mean()) for gamma in GAMMAS]
        for c in range(len(COMPRESSIONS))
    ]
    best = np.array(GAMMAS)[np.argmax(means, axis=1)]
    oracle = task_oracle(records)
    return np.column_stack(
        [np.full(len(steps.gamma), 4), best[steps.compression], oracle[steps.compression, steps.task]]
    )


def task_oracle(records: Records) -> Ints:
    """``[3, 4]`` fastest gamma of each compression and task, the mean over prompts deciding."""
    if records.timings is None:
        return np.array(TASK_GAMMA)
    runs, speed = records.runs, records.timings.tokens_per_second
    table = [
        [
            [speed[(runs.compression == c) & (runs.task == t) & (runs.gamma == gamma)].mean() for gamma in GAMMAS]
            for t in range(len(TASKS))
        ]
        for c in range(len(COMPRESSIONS))
    ]
    return np.asarray(np.array(GAMMAS)[np.argmax(table, axis=2)])


def _policy_tokens(fast: Floats, accurate: Floats, fixed: Ints) -> dict[str, Floats]:
    """Policy -> ``[T]`` expected tokens; all but SpecKV-accurate are scored by the fast model.

    Args:
        fast, accurate: ``[T, 4]`` from :func:`predictors.expected_tokens`.
        fixed: ``[T, 3]`` from :func:`gammas_of`.
    """
    columns = [np.take_along_axis(fast, np.searchsorted(GAMMAS, fixed[:, [n]]), axis=1)[:, 0] for n in range(3)]
    return dict(zip(POLICIES, [*columns, fast.max(axis=1), accurate.max(axis=1)], strict=True))


def _predictor_rows(inputs: Floats, rate: Floats, train: Ints, test: Ints) -> Rows:
    rows: Rows = []
    for name in predictors.CANDIDATES:
        model = predictors.fit(name, inputs[train], rate[train])
        correlation, error = predictors.scores(predictors.predicted_rate(model, inputs[test]), rate[test])
        row = {"table": "predictors", "model": name, "test_correlation": correlation, "test_mse": error}
        rows.append(row | {"decision_ms": predictors.decision_ms(model, inputs[test])} | PREDICTORS.get(name, {}))
    under = [row for row in rows if row["decision_ms"] < predictors.FAST_LIMIT_MS]
    chosen = max(under, key=lambda row: row["test_correlation"], default=None)
    roles = {predictors.FAST: "fast", predictors.ACCURATE: "accurate"}
    return [row | {"role": roles.get(row["model"]), "best_under_1_ms_here": row is chosen} for row in rows]


def _policy_rows(scored: _Scored) -> Rows:
    """Table 1, with the author's bootstrap over steps: one generator from seed 42 for all policies, then the test."""
    generator = np.random.RandomState(predictors.SEED)  # the published interval ends come from this legacy generator
    rows: Rows = []
    for policy, tokens in scored.expected.items():
        low, high = _interval(tokens, generator)
        published = POLICY_TOKENS[policy]
        for name, mask in scored.by_compression():
            row = {
                "table": "policies",
                "policy": policy,
                "compression": name,
                "expected_tokens": float(tokens[mask].mean()),
            }
            ends = dict(
                zip(("low", "high", "published_low", "published_high"), (low, high, *INTERVALS[policy]), strict=True)
            )
            rows.append(row | {"published": published[name]} | (ends if name == ALL else {}))
    difference = scored.expected["SpecKV-fast"] - scored.expected["fixed-4"]
    means = _resampled_means(difference, TEST_RESAMPLES, generator)
    low, high = np.percentile(means, [2.5, 97.5])
    gain = scored.expected["SpecKV-fast"].mean() / scored.expected["fixed-4"].mean() - 1
    row = {
        "table": "improvement",
        "percent": 100 * gain,
        "p_value": float(np.mean(means <= 0)),
        "resamples": TEST_RESAMPLES,
    }
    return [*rows, row | {"difference": float(difference.mean()), "low": low, "high": high, "published": 56.0}]


def _breakdown_rows(scored: _Scored) -> Rows:
    rows: Rows = []
    for c, compression in enumerate(COMPRESSIONS):
        for t, task in enumerate(TASKS):
            mask = (scored.compression == c) & (scored.task == t)
            base, fast = (float(scored.expected[policy][mask].mean()) for policy in ("fixed-4", "SpecKV-fast"))
            row = {"table": "breakdown", "compression": compression, "task": task, "fixed_4": base, "speckv_fast": fast}
            rows.append(row | {"percent": 100 * (fast / base - 1)})
    return rows


def _choice_rows(scored: _Scored) -> Rows:
    return [
        {"table": "choices", "compression": name, "gamma": gamma, "share": float(np.mean(scored.choice[mask] == gamma))}
        for name, mask in scored.by_compression()
        for gamma in GAMMAS
    ]


def _signal_rows(inputs: Floats, rate: Floats) -> Rows:
    correlations = {signal: predictors.scores(inputs[:, column], rate)[0] for column, signal in enumerate(SIGNALS)}
    importance = dict(zip(predictors.FEATURES, predictors.feature_importance(inputs, rate), strict=True))
    return [
        *(
            {
                "table": "correlations",
                "signal": signal,
                "correlation": value,
                "published": SIGNAL_CORRELATIONS.get(signal),
            }
            for signal, value in correlations.items()
        ),
        *(
            {"table": "importance", "feature": feature, "importance": value, "published": IMPORTANCE[feature]}
            for feature, value in importance.items()
        ),
    ]


def _interval(values: Floats, generator: np.random.RandomState) -> tuple[float, float]:
    """The author's percentile interval of a mean: sorted means number 125 and 4875 of 5,000."""
    means = np.sort(_resampled_means(values, INTERVAL_RESAMPLES, generator))
    return float(means[int(0.025 * INTERVAL_RESAMPLES)]), float(means[int(0.975 * INTERVAL_RESAMPLES)])


def _resampled_means(values: Floats, resamples: int, generator: np.random.RandomState) -> Floats:
    """``[resamples]`` means of as many steps drawn with replacement; the same draws as ``choice`` in a loop."""
    parts = [
        values[generator.randint(0, len(values), (_AT_ONCE, len(values)))].mean(axis=1)
        for _ in range(resamples // _AT_ONCE)
    ]
    return np.concatenate(parts)
