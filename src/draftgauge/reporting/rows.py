"""The rows of the report's tables: replayed and measured figures side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.policies import make_policy
from draftgauge.policies.base import Extends, Policy
from draftgauge.policies.registry import compared_policies
from draftgauge.replaying import Replay, evaluate
from draftgauge.replaying.evaluate import BOUNDS, HINDSIGHT, HINDSIGHT_BOTH, NOTHING
from draftgauge.replaying.hindsight import Sources, hindsight_optimum
from draftgauge.replaying.simulate import can_replay
from draftgauge.reporting.live import LiveRow, fixed_gamma, is_policy
from draftgauge.reporting.views import SpeedCurve, TableRow
from draftgauge.statistics.bootstrap import RESAMPLES
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

PLAIN = "plain"
POLICIES = (*compared_policies(), "hf-confidence:adaptive=true")
"""Replayed for every report, beside the best fixed lengths and whatever was measured live."""

# The charts show every length; a table of more than these hides the other policies.
MEASURED_LENGTHS = 4


def table_rows(
    trace: Trace,
    cost: CostCurve,
    fixed: Sequence[Replay],
    hindsight: Replay,
    speeds: Sequence[SpeedCurve],
    lengths: Sequence[int],
    live: Sequence[LiveRow],
) -> tuple[TableRow, ...]:
    """One row per task and policy, in the order of ``speeds``.

    Args:
        trace, cost: the run.
        fixed, hindsight: its replays.
        speeds: one curve per task to show.
        lengths: fixed lengths shown for every task; each task also shows its own best.
        live: the measurements of this compression.
    """
    by_task = {curve.task: {row.policy: row for row in live if row.task == curve.task} for curve in speeds}
    shown = {curve.task: _shown_lengths(curve, by_task[curve.task], lengths) for curve in speeds}
    policies = _policies(trace, cost, live)
    policies |= {f"fixed:{gamma}": fixed[gamma] for gamma in set().union(*shown.values())} | {HINDSIGHT: hindsight}
    if any(isinstance(policy, Extends) for policy in policies.values()):
        policies[HINDSIGHT_BOTH] = hindsight_optimum(trace, cost, Sources.BOTH).replay
    replayed = {(row["task"], row["policy"]): row for row in evaluate(trace, cost, policies, resamples=RESAMPLES)}
    rows: list[TableRow] = []
    for curve in speeds:
        here = by_task[curve.task]
        for policy in _order(shown[curve.task], policies, here):
            rows.append(_row(curve, policy, replayed.get((curve.task, policy)), here.get(policy)))
    return tuple(rows)


def _policies(trace: Trace, cost: CostCurve, live: Sequence[LiveRow]) -> dict[str, Policy | Replay]:
    """The policies to replay beside fixed lengths: of the standard ones and those measured what the trace can judge."""
    measured = [row.policy for row in live if row.gamma is None and is_policy(row.policy)]
    made = {spec: make_policy(spec, trace.gamma_max, cost) for spec in dict.fromkeys([*POLICIES, *measured])}
    return {spec: policy for spec, policy in made.items() if can_replay(trace, policy)}


def _shown_lengths(curve: SpeedCurve, here: Mapping[str, LiveRow], lengths: Sequence[int]) -> set[int]:
    """Fixed lengths in one task's table: the common ones, its own best, and those measured or the fastest of them."""
    gamma_max = len(curve.tokens_per_second) - 1
    measured = {
        row.gamma: row.ratio_to_plain or 0.0
        for row in here.values()
        if row.gamma is not None and row.gamma <= gamma_max
    }
    if len(measured) > MEASURED_LENGTHS:
        measured = {gamma: speed for gamma, speed in measured.items() if speed == max(measured.values())}
    return {*lengths, curve.best_draft, *measured}


def _order(lengths: set[int], policies: Mapping[str, Any], here: Mapping[str, LiveRow]) -> list[str]:
    """Plain decoding, fixed lengths, other policies, baselines, the optimum."""
    fixed = [f"fixed:{gamma}" for gamma in sorted(lengths)]
    others = [name for name in policies if name not in (NOTHING, *BOUNDS) and fixed_gamma(name) is None]
    bounds = [name for name in BOUNDS if name in policies]
    nothing = [NOTHING] if NOTHING in policies else []
    measured = [name for name in here if not is_policy(name) or (fixed_gamma(name) is None and name not in policies)]
    return list(dict.fromkeys([PLAIN, *nothing, *fixed, *others, *measured, *bounds]))


def _row(curve: SpeedCurve, policy: str, replayed: Mapping[str, Any] | None, live: LiveRow | None) -> TableRow:
    if policy == PLAIN:
        replayed = {"tokens_per_step": 1.0, "tokens_per_second": curve.plain, "ratio_to_plain": 1.0}
    modelled = replayed or {}
    return TableRow(
        task=curve.task,
        policy=policy,
        tokens_per_step=modelled.get("tokens_per_step", live.tokens_per_step if live else None),
        modelled_tokens_per_second=modelled.get("tokens_per_second"),
        modelled_ratio=modelled.get("ratio_to_plain"),
        live_tokens_per_second=live.tokens_per_second if live else None,
        live_ratio=live.ratio_to_plain if live else None,
        live_low=live.low if live else None,
        live_high=live.high if live else None,
        mismatches=live.mismatches if live else None,
    )
