"""The figures of the headline: which length to draft, what it brings, what is left, and why compressions differ.

The sentences about them stand in ``templates/advice.html.j2``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftgauge.reporting.figures import step_costs
from draftgauge.reporting.views import CompressionView, SpeedCurve


@dataclass(frozen=True)
class TaskAdvice:
    """The best length of one task, 0 if drafting does not pay, and its speed over plain decoding."""

    task: str
    gamma: int
    speedup: float


@dataclass(frozen=True)
class Advice:
    """What the top of the page says of one compression.

    Attributes:
        name: the compression.
        pays: whether any draft length is faster than plain decoding.
        gamma: the advised length; where drafting does not pay, the best of those that draft.
        speedup: of that length over plain decoding.
        hindsight: speed of choosing every length with the outcomes known, over plain decoding.
        hindsight_gain: the same over the best fixed length, minus 1.
        measured: that length's speed over plain decoding, measured live: of all tasks together, else the least and the
            most of the tasks; empty where it was not measured.
        drafted_cost: of one more drafted token, over verifying one token.
        verify_growth: time of verifying ``gamma + 1`` tokens at once, over verifying one.
        tokens_per_step: committed by a step that drafts ``gamma`` tokens.
        near_best: shortest and longest length about as good as the best; None where only one is, or drafting does not
            pay.
        tasks: the advice by task; empty with a single task.
    """

    name: str
    pays: bool
    gamma: int
    speedup: float
    hindsight: float
    hindsight_gain: float
    measured: tuple[float, ...]
    drafted_cost: float
    verify_growth: float
    tokens_per_step: float
    near_best: tuple[int, int] | None
    tasks: tuple[TaskAdvice, ...]


def advise(view: CompressionView) -> Advice:
    """The advice for one compression."""
    curve, cost = view.pooled, view.cost
    pays, gamma = drafting_pays(curve), curve.best_draft
    verify = cost.verify[len(cost.contexts) // 2]
    shortest, longest = curve.near_best
    return Advice(
        name=view.name,
        pays=pays,
        gamma=gamma,
        speedup=curve.tokens_per_second[gamma] / curve.plain,
        hindsight=curve.hindsight / curve.plain,
        hindsight_gain=curve.hindsight_gain,
        measured=_measured(view, gamma),
        drafted_cost=cost.cost_ratio(),
        verify_growth=verify[gamma] / verify[0],
        tokens_per_step=curve.tokens_per_step[gamma],
        near_best=(shortest, longest) if pays and shortest < longest else None,
        tasks=_by_task(view.speeds[1:]),
    )


def drafting_pays(curve: SpeedCurve) -> bool:
    """Whether the best length drafts at all and is faster than plain decoding."""
    return curve.best_gamma > 0 and curve.speedup > 1


def _by_task(curves: Sequence[SpeedCurve]) -> tuple[TaskAdvice, ...]:
    if len(curves) < 2:
        return ()
    return tuple(
        TaskAdvice(c.task, c.best_gamma, c.speedup) if drafting_pays(c) else TaskAdvice(c.task, 0, 1.0) for c in curves
    )


def _measured(view: CompressionView, gamma: int) -> tuple[float, ...]:
    rows = [row for row in view.rows if row.policy == f"fixed:{gamma}" and row.live_ratio is not None]
    pooled = [row for row in rows if row.task == view.pooled.task]
    values = sorted(row.live_ratio for row in pooled or rows if row.live_ratio is not None)
    return tuple(dict.fromkeys((values[0], values[-1]))) if values else ()


@dataclass(frozen=True)
class Contrast:
    """Why the best lengths of several compressions differ, or do not.

    Attributes:
        marginal: compression -> cost of drafting one token further, with its verification, in plain steps.
        order: "same" if the best length is the same for all, "costs" if it falls as that cost rises, else "mixed".
        cheap, dear: the compressions where that cost is least and most.
        shared: a length about as good as the best for every compression; None if there is none, or the order is "same".
        longer_tasks: where the order is "same": in how many tasks the cheap one has the longer best length, and of how
            many; None if in none, or if any task has it the other way round.
    """

    marginal: Mapping[str, float]
    order: str
    cheap: str
    dear: str
    shared: int | None = None
    longer_tasks: tuple[int, int] | None = None


def contrast(views: Sequence[CompressionView]) -> Contrast | None:
    """Set compressions side by side; None with a single one."""
    if len(views) < 2:
        return None
    marginal = {view.name: _marginal(view) for view in views}
    by_cost = sorted(views, key=lambda view: marginal[view.name])
    cheap, dear = by_cost[0], by_cost[-1]
    if len({view.pooled.best_gamma for view in views}) == 1:
        return Contrast(marginal, "same", cheap.name, dear.name, longer_tasks=_longer_tasks(cheap, dear))
    falls = all(cheaper.pooled.best_gamma >= dearer.pooled.best_gamma for cheaper, dearer in pairwise(by_cost))
    return Contrast(marginal, "costs" if falls else "mixed", cheap.name, dear.name, _shared_length(views))


def _shared_length(views: Sequence[CompressionView]) -> int | None:
    ranges = [view.pooled.near_best for view in views]
    shortest, longest = max(low for low, _ in ranges), min(high for _, high in ranges)
    return shortest if 1 <= shortest <= longest else None


def _longer_tasks(cheap: CompressionView, dear: CompressionView) -> tuple[int, int] | None:
    lengths = {curve.task: curve.best_gamma for curve in dear.speeds[1:]}
    pairs = [(curve.best_gamma, lengths[curve.task]) for curve in cheap.speeds[1:] if curve.task in lengths]
    longer = sum(here > there for here, there in pairs)
    if not longer or any(here < there for here, there in pairs):
        return None
    return longer, len(pairs)


def held_out_speedups(views: Sequence[CompressionView]) -> dict[str, float]:
    """Compression -> speed over plain decoding where each prompt's length is chosen on all the others."""
    return {v.name: v.pooled.held_out / v.pooled.plain for v in views if v.pooled.held_out is not None}


def _marginal(view: CompressionView) -> float:
    """Cost of one more drafted token, drafting and verifying together, in plain steps: the slope up to the longest
    draft.

    From one token on, where there are longer drafts: the first also pays for starting the drafter.
    """
    costs = step_costs(view.cost)
    first = min(1, len(costs) - 2)
    return (costs[-1] - costs[first]) / (len(costs) - 1 - first)
