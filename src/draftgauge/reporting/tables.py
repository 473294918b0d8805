"""The tables: every policy on every task of a compression, and policies side by side over all tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftgauge.policies import describe_policy
from draftgauge.replaying import ALL_TASKS
from draftgauge.replaying.evaluate import BOUNDS, HINDSIGHT, HINDSIGHT_BOTH
from draftgauge.reporting.data import ReportData
from draftgauge.reporting.style import MISSING, column_decimals, compression_title, fixed, ratio
from draftgauge.reporting.views import CompressionView, TableRow

BESIDE_POLICIES = {
    "plain": "plain decoding, one token a step",
    HINDSIGHT: "the exact optimum over all choices of length, knowing what the drafter drafts and the target accepts",
    HINDSIGHT_BOTH: "the same where tokens of the text may be appended",
    "transformers-generate": "generate() of transformers, no draft",
    "transformers-assisted": "generate(assistant_model=...) of transformers at its defaults",
    "transformers-assisted-constant": "generate(assistant_model=...) of transformers at a constant length",
}
"""What stands in tables beside policies."""


@dataclass(frozen=True)
class Line:
    """One printed table line: ratios to plain decoding, then what they are made of.

    ``marks`` holds the columns that are the best of their task.
    """

    policy: str
    description: str
    modelled: str
    live: str
    interval: str
    tokens_per_step: str
    modelled_speed: str
    live_speed: str
    mismatches: str
    marks: frozenset[str]


@dataclass(frozen=True)
class TaskLines:
    """The lines of one task."""

    task: str
    lines: tuple[Line, ...]


def describe(policy: str) -> str:
    """What a policy does, by the name before its colon; empty for names this version does not know."""
    return BESIDE_POLICIES.get(policy.partition(":")[0]) or describe_policy(policy)


def compression_table(view: CompressionView) -> tuple[TaskLines, ...]:
    """The lines of one compression, grouped by task in the order of its rows."""
    tasks = dict.fromkeys(row.task for row in view.rows)
    speeds = [
        s for row in view.rows for s in (row.modelled_tokens_per_second, row.live_tokens_per_second) if s is not None
    ]
    decimals = column_decimals(speeds)
    return tuple(
        TaskLines(_task_title(task), _lines([row for row in view.rows if row.task == task], decimals)) for task in tasks
    )


def _task_title(task: str) -> str:
    return "all tasks" if task == ALL_TASKS else task


def _lines(rows: Sequence[TableRow], decimals: int) -> tuple[Line, ...]:
    rivals = [row for row in rows if row.policy not in BOUNDS]
    best_modelled = max((r.modelled_tokens_per_second or 0.0 for r in rivals), default=0.0)
    best_live = max((r.live_ratio or 0.0 for r in rivals), default=0.0)
    return tuple(_line(row, best_modelled, best_live, decimals) for row in rows)


def _line(row: TableRow, best_modelled: float, best_live: float, decimals: int) -> Line:
    marks = set()
    if row.policy not in BOUNDS and best_modelled and row.modelled_tokens_per_second == best_modelled:
        marks.add("modelled")
    if best_live and row.live_ratio == best_live:
        marks.add("live")
    return Line(
        policy=row.policy,
        description=describe(row.policy),
        modelled=ratio(row.modelled_ratio),
        live=ratio(row.live_ratio),
        interval=_interval(row.live_low, row.live_high),
        tokens_per_step=fixed(row.tokens_per_step, 3),
        modelled_speed=fixed(row.modelled_tokens_per_second, decimals),
        live_speed=fixed(row.live_tokens_per_second, decimals),
        mismatches=MISSING if row.mismatches is None else f"{row.mismatches:,}",
        marks=frozenset(marks),
    )


def _interval(low: float | None, high: float | None) -> str:
    """The ends of an interval; empty where it is a point, as of a single prompt or of plain decoding over itself."""
    if low is None or high is None or math.isclose(low, high, rel_tol=1e-9):
        return ""
    return f"{fixed(low, 2)} {MISSING} {fixed(high, 2)}"


@dataclass(frozen=True)
class PolicyLine:
    """One policy over all tasks: what it does and its ratio to plain decoding under each compression."""

    policy: str
    description: str
    ratios: tuple[str, ...]
    best: tuple[bool, ...]


def policies_table(data: ReportData) -> tuple[tuple[str, ...], tuple[PolicyLine, ...]]:
    """Policies against compressions, modelled over all prompts: the column headings and the lines."""
    columns = [{row.policy: row for row in view.rows if row.task == ALL_TASKS} for view in data.compressions]
    policies = dict.fromkeys(policy for column in columns for policy in column)
    plain = [view.pooled.plain for view in data.compressions]
    table = {
        policy: [_modelled_ratio(column.get(policy), base) for column, base in zip(columns, plain, strict=True)]
        for policy in policies
    }
    shown = {policy: values for policy, values in table.items() if any(value is not None for value in values)}
    bests = [max((v[i] or 0.0 for p, v in shown.items() if p not in BOUNDS), default=0.0) for i in range(len(columns))]
    lines = tuple(
        PolicyLine(
            policy,
            describe(policy),
            tuple(ratio(value) for value in values),
            tuple(
                policy not in BOUNDS and value is not None and value == best
                for value, best in zip(values, bests, strict=True)
            ),
        )
        for policy, values in shown.items()
    )
    return tuple(compression_title(view.name) for view in data.compressions), lines


def _modelled_ratio(row: TableRow | None, plain: float) -> float | None:
    return None if row is None or row.modelled_tokens_per_second is None else row.modelled_tokens_per_second / plain
