"""Figures for notebooks, one function each: they draw on the matplotlib axes given, or new ones, and return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot

from draftgauge.core.errors import DraftgaugeError
from draftgauge.judging.acceptance import acceptance_by_depth
from draftgauge.judging.evaluate import ALL_TASKS
from draftgauge.reporting.layout import LIGHT
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.run import Run, read_trace
from draftgauge.traces.trace import Trace

KINDS = {"accepted": "green", "corrected": "vermillion", "bonus": "blue", "plain": "muted"}  # of tokens, by colour
TOKENS_SHOWN = 160


def speed(rows: Sequence[Mapping[str, Any]], task: str = ALL_TASKS, axes: Any = None) -> Any:
    """Speed over plain decoding with its interval, a line for each policy; ``rows`` of ``replay`` or ``bench``."""
    if isinstance(rows, str | Path):
        raise DraftgaugeError(f"speed draws rows: give draftgauge.replay({str(rows)!r})")
    shown = sorted((row for row in rows if row.get("task") == task), key=lambda row: float(row["ratio_to_plain"]))
    axes = axes or pyplot.subplots(figsize=(6, 0.6 + 0.28 * len(shown)))[1]
    for place, row in enumerate(shown):
        axes.hlines(place, row["ratio_to_plain_low"], row["ratio_to_plain_high"], color=LIGHT["blue"])
        axes.plot(row["ratio_to_plain"], place, "o", color=LIGHT["blue"])
    axes.set_yticks(range(len(shown)), [row["policy"] for row in shown])
    axes.axvline(1.0, color=LIGHT["muted"], linestyle=":")
    axes.set_xlabel("speed over plain decoding")
    return axes


def acceptance(trace: Trace | str | Path, axes: Any = None) -> Any:
    """The chance that the token drafted at each depth is accepted, given that all before it were; a line a task.

    A run's folder may stand for its trace, here and in the others.
    """
    axes = axes or pyplot.subplots()[1]
    rows = [row for row in acceptance_by_depth(_trace_of(trace)) if row["alpha"] is not None]
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        axes.plot([row["depth"] for row in own], [row["alpha"] for row in own], marker="o", label=task)
    axes.set_xlabel("depth of the drafted token")
    axes.set_ylabel("conditional acceptance rate")
    axes.legend()
    return axes


def costs(curve: CostCurve | str | Path, axes: Any = None) -> Any:
    """Milliseconds of drafting and of verifying by tokens drafted, a line for each context length."""
    axes = axes or pyplot.subplots()[1]
    curve = curve if isinstance(curve, CostCurve) else Run(Path(curve)).costs
    for name, table, style in (("verify", curve.verify, "-"), ("draft", curve.draft, "--")):
        for context, seconds in zip(curve.contexts, table, strict=True):
            axes.plot(1e3 * np.asarray(seconds), style, label=f"{name}, {context} tokens of context")
    axes.set_xlabel("tokens drafted")
    axes.set_ylabel("ms")
    axes.legend()
    return axes


def timeline(trace: Trace | str | Path, prompt: int = 0, gamma: int = 4, axes: Any = None) -> Any:
    """How the start of one output comes about in steps of ``gamma`` drafted tokens: a bar a step, a block a token."""
    axes, trace = axes or pyplot.subplots(figsize=(8, 2))[1], _trace_of(trace)
    start, end = trace.offsets[prompt : prompt + 2].tolist()
    row, number = start, 0
    while row < end and row - start < TOKENS_SHOWN:
        drafted = min(gamma, int(trace.drafted[row]), trace.max_new_tokens - (row - start) - 1)
        accepted = min(drafted, int(trace.accepted[row]))
        own = "plain" if drafted == 0 else "bonus" if accepted == drafted else "corrected"
        step = ["accepted"] * accepted + [own] * (row + accepted < end)  # else the output ends with a drafted token
        for height, kind in enumerate(step):
            axes.bar(number, 1, bottom=height, color=LIGHT[KINDS[kind]])
        row, number = row + len(step), number + 1
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=LIGHT[colour]) for colour in KINDS.values()]
    axes.legend(handles, KINDS, ncols=len(KINDS), fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
    axes.set_xlabel("step")
    axes.set_ylabel("tokens")
    return axes


def _trace_of(run: Trace | str | Path) -> Trace:
    return run if isinstance(run, Trace) else read_trace(Path(run))
