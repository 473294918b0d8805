"""The headline in plain words: which length to draft, what it brings, what is left, and why compressions differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftgauge.replay.evaluate import NEAR
from draftgauge.report.figures import step_costs
from draftgauge.report.style import compression_heading, compression_title, number, percent, ratio
from draftgauge.report.views import CompressionView, SpeedCurve

GAMMA = "\N{GREEK SMALL LETTER GAMMA}"


@dataclass(frozen=True)
class Headline:
    """What the top of the page says of one compression.

    Attributes:
        name: the compression.
        speedup: of the advised length over plain decoding.
        advice: what to do.
        reason: the costs behind it.
        tasks: task, its best length and speed-up; empty with a single task.
    """

    name: str
    speedup: str
    advice: str
    reason: str
    tasks: tuple[tuple[str, str, str], ...]


def headline(view: CompressionView) -> Headline:
    """The advice for one compression."""
    curve = view.pooled
    return Headline(
        name=compression_heading(view.name),
        speedup=ratio(_advised_speedup(curve)),
        advice=_advice(view, curve),
        reason=_reason(view),
        tasks=_by_task(view.speeds[1:]),
    )


def _drafting_pays(curve: SpeedCurve) -> bool:
    return curve.best_gamma > 0 and curve.speedup > 1


def _advised_speedup(curve: SpeedCurve) -> float:
    return curve.speedup if _drafting_pays(curve) else 1.0


def _advice(view: CompressionView, curve: SpeedCurve) -> str:
    target = f"With the {compression_title(view.name)} target"
    if not _drafting_pays(curve):
        best = curve.best_draft
        return (
            f"{target}, do not draft: the best length, {tokens(best)}, reaches {ratio(curve.tokens_per_second[best] / curve.plain)} plain "
            f"decoding{_measured(view, best)}. "
            f"Choosing the length perfectly at every step would reach {ratio(curve.hindsight / curve.plain)}."
        )
    return (
        f"{target}, draft {tokens(curve.best_gamma)}: {ratio(curve.speedup)} plain decoding{_measured(view, curve.best_gamma)}. "
        f"Choosing the length perfectly at every step would give another {percent(curve.hindsight_gain)}."
    )


def tokens(count: int) -> str:
    """A number of tokens in words."""
    return "1 token" if count == 1 else f"{count} tokens"


def _measured(view: CompressionView, gamma: int) -> str:
    """What live measurements of that length say: over all tasks together, else the range of the tasks."""
    rows = [row for row in view.rows if row.policy == f"fixed:{gamma}" and row.ratio_is_live]
    pooled = [row for row in rows if row.task == view.pooled.task]
    values = sorted(row.ratio_to_plain for row in pooled or rows if row.ratio_to_plain is not None)
    if not values:
        return " (modelled)"
    if len(values) == 1:
        return f" (modelled; {ratio(values[0])} measured live)"
    return f" (modelled; {ratio(values[0])} to {ratio(values[-1])} measured live, by task)"


def _reason(view: CompressionView) -> str:
    cost, gamma = view.cost, view.pooled.best_draft
    middle = len(cost.contexts) // 2
    growth = cost.verify[middle][gamma] / cost.verify[middle][0]
    return (
        f"One more drafted token costs {percent(cost.cost_ratio())} of verifying one token; verifying {gamma + 1} tokens at once costs "
        f"{ratio(growth)} verifying one. Drafting {tokens(gamma)}, a step commits {number(view.pooled.tokens_per_step[gamma])} on average."
        f"{_flatness(view.pooled)}"
    )


def _flatness(curve: SpeedCurve) -> str:
    """How much the advised length matters; empty where no other comes near, or none is advised."""
    shortest, longest = curve.near_best
    if not _drafting_pays(curve) or shortest == longest:
        return ""
    return f" Any length from {shortest} to {tokens(longest)} is within {100 * NEAR:.0f}% of the best."


def _by_task(curves: Sequence[SpeedCurve]) -> tuple[tuple[str, str, str], ...]:
    if len(curves) < 2:
        return ()
    return tuple(
        (c.task, tokens(c.best_gamma) if _drafting_pays(c) else "do not draft", ratio(_advised_speedup(c)))
        for c in curves
    )


def best_note(curve: SpeedCurve) -> str:
    """What a speed chart marks, in figures."""
    return (
        f"best {GAMMA} = {curve.best_gamma}: {number(curve.best)} tokens/s, {ratio(curve.speedup)} plain; "
        f"hindsight +{percent(curve.hindsight_gain)}"
    )


def why_lengths_differ(views: Sequence[CompressionView]) -> str:
    """One paragraph that sets compressions side by side; says so plainly where the costs do not explain the order."""
    if len(views) < 2:
        return ""
    marginal = {view.name: _marginal(view) for view in views}
    told = "; ".join(f"{percent(marginal[v.name])} with the {compression_title(v.name)} target" for v in views)
    opening = (
        f"Drafting one token further, with its verification, lengthens a step by this share of a plain step: {told}. "
    )
    if len({view.pooled.best_gamma for view in views}) == 1:
        return opening + "The best fixed length is the same for all of them." + _task_by_task(views, marginal)
    by_cost = sorted(views, key=lambda view: marginal[view.name])
    if all(cheaper.pooled.best_gamma >= dearer.pooled.best_gamma for cheaper, dearer in pairwise(by_cost)):
        cheap, dear = (compression_title(view.name) for view in (by_cost[0], by_cost[-1]))
        return opening + (
            f"That is why the best length differs: where another token is cheap ({cheap}), long drafts pay even if their last tokens are "
            f"often rejected; where it is dear ({dear}), only tokens that are likely to be accepted do.{_one_for_all(views)}"
        )
    return (
        opening
        + "The best lengths do not follow that order alone: acceptance differs between these targets too."
        + _one_for_all(views)
    )


def _one_for_all(views: Sequence[CompressionView]) -> str:
    """A length that is about as good as the best for every target, if there is one: then the difference is one of names."""
    ranges = [view.pooled.near_best for view in views]
    shortest, longest = max(low for low, _ in ranges), min(high for _, high in ranges)
    if not 1 <= shortest <= longest:
        return ""
    return f" It does not matter much here: {tokens(shortest)} would be within {100 * NEAR:.0f}% of the best for each of them."


def _task_by_task(views: Sequence[CompressionView], marginal: Mapping[str, float]) -> str:
    """For targets with one best length over all prompts: whether the tasks by themselves follow the cost; empty if they do not."""
    cheap, dear = (choose(views, key=lambda view: marginal[view.name]) for choose in (min, max))
    lengths = {curve.task: curve.best_gamma for curve in dear.speeds[1:]}
    pairs = [(curve.best_gamma, lengths[curve.task]) for curve in cheap.speeds[1:] if curve.task in lengths]
    longer = sum(here > there for here, there in pairs)
    if not longer or any(here < there for here, there in pairs):
        return ""
    return (
        f" Task by task it is not: where another token is cheap ({compression_title(cheap.name)}), longer drafts are best in {longer} of "
        f"{len(pairs)} tasks than where it is dear ({compression_title(dear.name)})."
    )


def how_chosen(views: Sequence[CompressionView]) -> str:
    """How much of the headline comes from choosing the length on the very prompts it is quoted for."""
    parts = [
        f"{ratio(v.pooled.held_out / v.pooled.plain)} ({compression_title(v.name)})"
        for v in views
        if v.pooled.held_out is not None
    ]
    chosen = "The best length is chosen on the prompts it is quoted for, which favours it."
    return (
        f"{chosen} Chosen for each prompt on all the others, it reaches {', '.join(parts)} plain decoding."
        if parts
        else chosen
    )


def _marginal(view: CompressionView) -> float:
    """Cost of one more drafted token, drafting and verifying together, in plain steps: the slope up to the longest draft.

    From one token on, where there are longer drafts: the first also pays for starting the drafter.
    """
    costs = step_costs(view.cost)
    first = min(1, len(costs) - 2)
    return (costs[-1] - costs[first]) / (len(costs) - 1 - first)
