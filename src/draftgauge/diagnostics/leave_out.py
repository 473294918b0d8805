"""Does what was fitted on some tasks, compressions or draft sizes hold on others? Leave one out, fit on the rest, judge
on it; no torch.

Every design fits on training prompts and evaluates on test prompts (:func:`draftgauge.replaying.splits.splits_of`), so
that what was left out is new in both ways. Gains are over the best fixed length on the *training prompts of what was
left out*: a rival that knows the new task, compression or pair, which the fitted policy does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from draftgauge.core.errors import TraceError
from draftgauge.core.prompts import TEST, TRAIN
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FittedPolicy, fitted_policy
from draftgauge.replaying.evaluate import Row, evaluate_design
from draftgauge.replaying.simulate import Replay
from draftgauge.replaying.splits import Design, split_trace
from draftgauge.statistics.bootstrap import TEST_RESAMPLES
from draftgauge.traces.build import select
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

LEFT_OUT, LEFT_IN = "left-out", "left-in"


@dataclass(frozen=True)
class Recorded:
    """A recorded run: its trace, its costs, and a name that tells its pair from those with other drafts."""

    trace: Trace
    costs: CostCurve
    pair: str = ""


Fit = Callable[[Sequence[Recorded]], FittedPolicy]
"""Fits one policy on several runs, which hold training prompts only."""


def leave_task_out(runs: Sequence[Recorded], fit: Fit, *, resamples: int = TEST_RESAMPLES) -> list[Row]:
    """For every task: fit on the training prompts of all other tasks, evaluate on the test prompts of that one.

    Args:
        runs: whole recorded runs, e.g. one a compression; fitted on together, evaluated on one by one.
        fit: fits the policy.
        resamples: of the intervals.

    Returns:
        Rows as :func:`~draftgauge.replaying.evaluate.evaluate` describes, with ``design`` ("task"), ``left`` (which
        one) and ``pair``. The policies are ``left-out``, ``left-in`` (fitted on everything, what it was left out of
        too), the baselines.

    Raises:
        TraceError: if there are fewer than two tasks, or a split of one has too few prompts.
    """
    tasks = [_tasks(run) for run in runs]
    names = _at_least_two("tasks", [task for own in tasks for task in own])
    groups = {
        name: [_of_tasks(run, [name]) for run, own in zip(runs, tasks, strict=True) if name in own] for name in names
    }
    others = {
        name: [
            _of_tasks(run, [t for t in own if t != name]) for run, own in zip(runs, tasks, strict=True) if own != [name]
        ]
        for name in names
    }
    rows = _leave_out("task", groups, others, runs, fit, resamples)
    return [row for row in rows if row["task"] == row["left"]]  # over all tasks they are the same


def leave_compression_out(runs: Sequence[Recorded], fit: Fit, *, resamples: int = TEST_RESAMPLES) -> list[Row]:
    """For every compression: fit on the runs of the others, evaluate on its own.

    Otherwise as :func:`leave_task_out`.
    """
    return _leave_runs_out("compression", [run.trace.compression for run in runs], runs, fit, resamples)


def leave_pair_out(runs: Sequence[Recorded], fit: Fit, *, resamples: int = TEST_RESAMPLES) -> list[Row]:
    """For every pair, say every draft size: fit on the runs of the others, evaluate on its own.

    Otherwise as :func:`leave_task_out`.
    """
    return _leave_runs_out("pair", [run.pair for run in runs], runs, fit, resamples)


def _leave_runs_out(
    design: str, labels: Sequence[str], runs: Sequence[Recorded], fit: Fit, resamples: int
) -> list[Row]:
    names = _at_least_two(f"{design}s", labels)
    groups = {name: [run for run, label in zip(runs, labels, strict=True) if label == name] for name in names}
    others = {name: [run for run, label in zip(runs, labels, strict=True) if label != name] for name in names}
    return _leave_out(design, groups, others, runs, fit, resamples)


def _leave_out(
    design: str,
    groups: dict[str, list[Recorded]],
    others: dict[str, list[Recorded]],
    runs: Sequence[Recorded],
    fit: Fit,
    resamples: int,
) -> list[Row]:
    """Fit without each group in turn, and once with everything; evaluate both on the group."""
    left_in = fit(_training(runs))
    rows: list[Row] = []
    for name, group in groups.items():
        fitted = {LEFT_OUT: fit(_training(others[name])), LEFT_IN: left_in}
        for run in group:
            plan = Design(TEST, split_trace(run.trace, TEST), split_trace(run.trace, TRAIN))
            rows_without = evaluate_design(plan, run.costs, _arms(fitted, run.trace.gamma_max), resamples=resamples)
            key: Row = {"design": design, "left": name, "pair": run.pair}
            rows += [key | row for row in rows_without]
    return rows


def _arms(fitted: dict[str, FittedPolicy], gamma_max: int) -> Callable[[CostCurve], dict[str, Policy | Replay]]:
    return lambda costs: {name: fitted_policy(policy, gamma_max, costs) for name, policy in fitted.items()}


def _training(runs: Sequence[Recorded]) -> list[Recorded]:
    return [replace(run, trace=split_trace(run.trace, TRAIN)) for run in runs]


def _tasks(run: Recorded) -> list[str]:
    return list(dict.fromkeys(prompt.task for prompt in run.trace.prompts))


def _of_tasks(run: Recorded, tasks: Sequence[str]) -> Recorded:
    return replace(run, trace=select(run.trace, np.array([prompt.task in tasks for prompt in run.trace.prompts])))


def _at_least_two(what: str, names: Sequence[str]) -> list[str]:
    distinct = list(dict.fromkeys(names))
    if len(distinct) < 2:
        raise TraceError(
            f"leaving one out takes two or more {what}, the runs given have {', '.join(distinct) or 'none'}: record "
            "others"
        )
    return distinct
