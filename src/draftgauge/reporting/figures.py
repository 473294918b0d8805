"""The charts, one small panel each; the page arranges them in a grid that folds on narrow screens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from draftgauge.reporting.style import LIGHT, Series, compression_title, number, percent, ratio, series
from draftgauge.reporting.svg import PANEL, SMALL_PANEL, panel, to_svg
from draftgauge.reporting.views import AcceptanceCurve, CompressionView, LivePoint, SpeedCurve
from draftgauge.traces.costs import CostCurve

VERIFY, DRAFT = Series("blue", (), ""), Series("vermillion", (), "")
PLAIN, HINDSIGHT = Series("muted", (1.2, 1.8), ""), Series("green", (6, 2), "")
MODELLED, LIVE = Series("blue", (), "o"), Series("vermillion", (), "D")
COMMITTED, STEP_COST = Series("green", (), "^"), Series("vermillion", (5, 1.5), "s")
CONTEXT_DASHES: tuple[tuple[float, ...], ...] = ((1.2, 1.2), (), (5, 1.5))


def acceptance_panel(view: CompressionView, tasks: Sequence[str]) -> Markup:
    """Acceptance by depth, one line a task with its 95% band."""
    with panel("depth in the draft (tokens)", "accepted, %") as axes:
        for curve in view.acceptance:
            _acceptance_line(axes, curve, series(tasks.index(curve.task)))
        axes.set_ylim(0, 102)
        _whole_tokens(axes, 1, max(len(curve.rate) for curve in view.acceptance))
        firsts = ", ".join(f"{curve.task} {percent(curve.rate[0])}" for curve in view.acceptance)
        title = compression_title(view.name)
        return to_svg(
            axes, f"acceptance-{slug(view.name)}", f"Acceptance by depth, {title} target. At depth 1: {firsts}."
        )


def _acceptance_line(axes: Any, curve: AcceptanceCurve, style: Series) -> None:
    depth = np.arange(1, len(curve.rate) + 1)
    axes.fill_between(
        depth, 100 * np.array(curve.low), 100 * np.array(curve.high), color=style.hex, alpha=0.14, linewidth=0
    )
    axes.plot(depth, 100 * np.array(curve.rate), **style.line, label=curve.task)


def speed_panel(view: CompressionView, curve: SpeedCurve) -> Markup:
    """Speed over plain decoding against draft length: modelled curve, hindsight optimum, live measurements.

    Live points are ratios too: both sides of each were measured side by side, so that they hold on a busy machine.
    """
    speedups, hindsight = curve.speedups, curve.hindsight / curve.plain
    gamma = np.arange(len(speedups))
    top = max([hindsight, 1.0, *speedups, *(p.high or p.ratio for p in curve.live)])
    size = PANEL if curve is view.pooled else SMALL_PANEL
    with panel("drafted tokens a step, \N{GREEK SMALL LETTER GAMMA}", "times plain decoding", size) as axes:
        for height, style in ((1.0, PLAIN), (hindsight, HINDSIGHT)):
            axes.axhline(height, color=style.hex, linestyle=style.linestyle)
        axes.plot(gamma, speedups, color=MODELLED.hex, marker=MODELLED.marker, markersize=3.5)
        axes.plot(
            curve.best_gamma,
            curve.speedup,
            color=MODELLED.hex,
            marker="o",
            markersize=10,
            markeredgecolor=LIGHT["card"],
            zorder=4,
        )
        for point in curve.live:
            _live_point(axes, point)
        axes.set_ylim(0, top * 1.12)
        _whole_tokens(axes, 0, int(gamma[-1]))
        return to_svg(axes, f"speed-{slug(view.name)}-{slug(curve.task)}", _describe_speed(view, curve))


def _live_point(axes: Any, point: LivePoint) -> None:
    gamma, colour = point.gamma, LIVE.hex
    if point.low is not None and point.high is not None:
        axes.plot([gamma, gamma], [point.low, point.high], color=colour, linewidth=1.6, zorder=5)
    axes.plot(
        gamma, point.ratio, color=colour, marker=LIVE.marker, markersize=5.5, markeredgecolor=LIGHT["card"], zorder=6
    )


def _describe_speed(view: CompressionView, curve: SpeedCurve) -> str:
    where = "all tasks" if curve is view.pooled else curve.task
    return (
        f"Modelled speed over plain decoding against draft length, {compression_title(view.name)} target, {where}. "
        f"Best at {curve.best_gamma}: {ratio(curve.speedup)}; hindsight optimum {ratio(curve.hindsight / curve.plain)}."
    )


def shown_contexts(cost: CostCurve) -> tuple[int, ...]:
    """Indices of at most three measured context lengths: the shortest, the median one and the longest."""
    last = len(cost.contexts) - 1
    return tuple(dict.fromkeys((0, len(cost.contexts) // 2, last)))


def context_dash(cost: CostCurve, row: int) -> tuple[float, ...]:
    """Dash of a context length in the cost panels: solid for the median."""
    median = len(cost.contexts) // 2
    return CONTEXT_DASHES[1 + (row > median) - (row < median)]


def cost_panel(view: CompressionView) -> Markup:
    """Milliseconds of verifying and of drafting a number of tokens, by context length."""
    cost = view.cost
    with panel("tokens, k or n", "milliseconds") as axes:
        for row in shown_contexts(cost):
            dash = context_dash(cost, row)
            line, width = ((0, dash), 1.3) if dash else ("-", 1.8)
            for style, seconds in ((VERIFY, cost.verify[row]), (DRAFT, cost.draft[row][1:])):
                tokens, milliseconds = np.arange(1, len(seconds) + 1), 1e3 * np.asarray(seconds)
                axes.plot(tokens, milliseconds, color=style.hex, linestyle=line, linewidth=width)
        axes.set_ylim(bottom=0)
        _whole_tokens(axes, 1, cost.gamma_max + 1)
        median = len(cost.contexts) // 2
        text = (
            f"Cost of a step's parts, {compression_title(view.name)} target, context {cost.contexts[median]}: "
            f"verifying one token {number(1e3 * cost.verify[median][0])} ms, verifying {cost.gamma_max + 1} "
            f"{number(1e3 * cost.verify[median][-1])} ms, drafting {cost.gamma_max} "
            f"{number(1e3 * cost.draft[median][-1])} ms."
        )
        return to_svg(axes, f"cost-{slug(view.name)}", text)


def step_costs(cost: CostCurve) -> list[float]:
    """Seconds of a step that drafts 0..gamma_max tokens over those of a plain step, at the median measured context."""
    middle = len(cost.contexts) // 2
    seconds = cost.step_seconds(np.arange(cost.gamma_max + 1), cost.contexts[middle])
    return [float(value) for value in seconds / cost.plain[middle]]


def balance_panel(view: CompressionView, top: float) -> Markup:
    """What a step brings (tokens) against what it costs (plain steps); their quotient is the speed-up.

    Args:
        view: the compression.
        top: the highest value of any compression, so that the panels share their scale.
    """
    curve, costs = view.pooled, step_costs(view.cost)
    gamma = np.arange(len(curve.tokens_per_step))
    with panel("drafted tokens a step, \N{GREEK SMALL LETTER GAMMA}", "tokens or plain steps") as axes:
        for values, style in ((curve.tokens_per_step, COMMITTED), (costs[: len(gamma)], STEP_COST)):
            axes.plot(gamma, values, **style.line, markersize=3.5)
        best = curve.best_gamma
        axes.plot(
            [best, best], [costs[best], curve.tokens_per_step[best]], color=LIGHT["muted"], linewidth=1.2, zorder=1
        )
        axes.set_ylim(0, top * 1.08)
        _whole_tokens(axes, 0, int(gamma[-1]))
        text = (
            f"{compression_title(view.name)} target: at draft length {best} a step commits "
            f"{number(curve.tokens_per_step[best])} tokens and costs as much as {number(costs[best])} plain steps."
        )
        return to_svg(axes, f"balance-{slug(view.name)}", text)


def _whole_tokens(axes: Any, first: int, last: int) -> None:
    """Ticks at whole numbers of tokens, at most nine or so, the first always among them."""
    stride = max(1, -(-(last - first) // 8))
    axes.set_xticks(range(first, last + 1, stride))
    axes.set_xlim(first - 0.5, last + 0.5)


def slug(name: str) -> str:
    """A name as part of an id."""
    return "".join(letter if letter.isascii() and letter.isalnum() else f"_{ord(letter)}_" for letter in name)
