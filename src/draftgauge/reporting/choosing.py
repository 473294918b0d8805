"""Policies that choose the draft length, judged on prompts they never saw against the best fixed length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from draftgauge.core.printable import speed
from draftgauge.core.prompts import TEST, TRAIN
from draftgauge.policies import make_policy
from draftgauge.policies.base import Policy
from draftgauge.policies.fitted import FITTED_SUFFIX, load_fitted
from draftgauge.policies.registry import NO_DRAFT, current_name
from draftgauge.replaying.cost_sweep import cost_sweep
from draftgauge.replaying.evaluate import ALL_TASKS, BOUNDS, HINDSIGHT, evaluate_design, figure
from draftgauge.replaying.simulate import Replay
from draftgauge.replaying.splits import MIN_PROMPTS, design_of, splits_of
from draftgauge.reporting.charts import Axes, Line, line_chart
from draftgauge.reporting.layout import Columns, Table, decimals, ends, table_of
from draftgauge.reporting.rows import Row, Run, describe
from draftgauge.reporting.style import Series, signed
from draftgauge.statistics.bootstrap import RESAMPLES
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

ALWAYS_COMPARED = ("hf-confidence", "cumulative-confidence")
"""Rules of the field that every report compares, beside the policies that were asked for."""
LEVEL = 0.05
CHARTED = 6  # more lines cannot be told apart
COLUMNS: Columns = {
    "name": ("policy", str),
    "gain": ("gain", signed),
    "interval": ("95% interval", str),
    "p_holm": ("p", lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}"),
    "captured": ("captured", lambda share: signed(share, 0)),
    "tokens_per_step": ("tokens/step", decimals(2)),
    "tokens_per_second": ("tokens/s", speed),
    "what": ("what it does", str),
}


@dataclass(frozen=True)
class Choice:
    """Policies judged at one compression.

    Attributes:
        name: the compression.
        prompts, training_prompts: judged on, and that the best fixed length was chosen on.
        verdict: row of the policy with the largest gain, with ``outcome``: "undecided" if the interval is not above
            zero, "ahead" if it is and so is the p-value adjusted for all policies, else "by chance".
        optimum: gain of the hindsight optimum, least and most over the cost ratios of the sweep.
        table, gain: all policies; gains against the cost ratio.
    """

    name: str
    prompts: int
    training_prompts: int
    verdict: Row
    optimum: tuple[float, float]
    table: Table
    gain: Markup


def can_judge(trace: Trace) -> bool:
    """Whether there are enough training and test prompts, named by the prompts or divided."""
    splits = splits_of(trace)
    return all(int((splits == split).sum()) >= MIN_PROMPTS for split in (TRAIN, TEST))


def choose(run: Run, policies: Sequence[str]) -> Choice:
    """Judge policies on the test prompts of a run.

    Args:
        run: with all prompts.
        policies: specs, beside those that every report compares.

    Raises:
        TraceError: if a split has too few prompts.
        DraftgaugeError: for an unknown policy, or one that was fitted for other drafts.
    """
    design = design_of(run.trace, TEST, fixed=True)
    assert design.train is not None
    asked = dict.fromkeys([*policies, *ALWAYS_COMPARED])
    specs = [spec for spec in asked if current_name(spec).partition(":")[0] not in (NO_DRAFT, "fixed")]

    def arms(costs: CostCurve) -> dict[str, Policy | Replay]:
        return {spec: make_policy(spec, run.trace.gamma_max, costs) for spec in specs}

    found = [dict(row) for row in evaluate_design(design, run.cost, arms) if row["task"] == ALL_TASKS]
    swept = cost_sweep(design, run.cost, arms, resamples=RESAMPLES)
    verdict: Row = max((row for row in found if row["policy"] in specs), key=lambda row: figure(row, "gain"))
    outcome = "undecided"
    if figure(verdict, "gain_low") > 0:
        outcome = "ahead" if figure(verdict, "p_holm") < LEVEL else "by chance"
    rows = [
        row
        | {
            "name": _title(str(row["policy"]), specs),
            "what": _what(str(row["policy"])),
            "interval": ends(row, "gain_", signed),
        }
        | {"kind": "best" if row is verdict else "" if row["policy"] in specs else "bound"}
        for row in sorted(found, key=lambda row: (row["policy"] in BOUNDS, -figure(row, "gain")))
    ]
    optimum = [figure(r, "gain") for r in swept if r["policy"] == HINDSIGHT and r["task"] == ALL_TASKS]
    return Choice(
        run.name,
        len(design.trace.prompts),
        len(design.train.prompts),
        verdict | {"name": _title(verdict["policy"], specs), "outcome": outcome},
        (min(optimum), max(optimum)),
        table_of(rows, COLUMNS),
        _gain_chart(run, specs, [dict(row) for row in swept if row["task"] == ALL_TASKS]),
    )


def _title(spec: str, specs: Sequence[str]) -> str:
    """A policy's name for readers: fitted ones go by their file, unless two have the same name."""
    stems = [Path(other).stem for other in specs]
    return Path(spec).stem if spec.endswith(FITTED_SUFFIX) and stems.count(Path(spec).stem) == 1 else spec


def _what(spec: str) -> str:
    if not spec.endswith(FITTED_SUFFIX):
        return describe(spec)
    fitted = load_fitted(Path(spec))
    return f"{describe(fitted.policy) or fitted.policy}, fitted on {len(fitted.trained_on)} prompts"


def _gain_chart(run: Run, specs: Sequence[str], swept: Sequence[Row]) -> Markup:
    """Gain over the best fixed length against the cost ratio, a line with its 95% band for every policy."""
    lines = []
    for spec in specs[:CHARTED]:
        own = [row for row in swept if row["policy"] == spec]
        x = [row["cost_ratio"] for row in own]
        columns = ([100 * row[key] for row in own] for key in ("gain", "gain_low", "gain_high"))
        lines.append(Line(_title(spec, specs), x, *columns))
    frame = Axes(
        "cost of a drafted token over a verification",
        "gain over the best fixed length, %",
        ticks=lines[0].x,
        logarithmic=True,
    )
    return line_chart(f"gain-{run.name}", frame, lines, {"best fixed length": (0.0, Series("muted"))})
