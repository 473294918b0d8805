"""The report of recorded runs: which draft length to use, what it brings, and why, as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from draftgauge.core.errors import TraceError
from draftgauge.core.table import speed
from draftgauge.judging.acceptance import acceptance_by_context, acceptance_by_depth
from draftgauge.judging.batch_rows import batch_rows, shown_rows
from draftgauge.judging.evaluate import ALL_TASKS, BOUNDS
from draftgauge.judging.splits import MIN_PROMPTS
from draftgauge.policies.fitted import FITTED_SUFFIX
from draftgauge.policies.spec import FIXED, NO_DRAFT
from draftgauge.reporting.charts import PANEL, SMALL_PANEL, Axes, Line, interval_chart, line_chart
from draftgauge.reporting.layout import (
    Columns,
    Facts,
    Series,
    Table,
    decimals,
    ends,
    facts_of,
    named,
    ratio,
    render_page,
    report_facts,
    series,
    signed,
    table_of,
)
from draftgauge.reporting.ranked import ranked_section
from draftgauge.reporting.rows import JudgedRun, Row, best_length, describe, policy_rows
from draftgauge.serving.advice import flags_of
from draftgauge.serving.engines import ENGINES, deployment_of
from draftgauge.traces.run import COSTS_NAME, Manifest, ModelEntry

TITLE = "How far to draft"
MIN_POSITIONS = 20  # of fewer drafts that came to a depth, a rate and its interval would say more than is known
BUNDLED = "reference"
PLAIN, BOUND, LIVE = Series("muted", (1.2, 1.8)), Series("green", (6, 2)), Series("vermillion", (), "D")
MODELLED, STEP = Series("blue", (), "o"), Series("ink")
BATCH_COLUMNS: Columns = {
    "batch": ("requests at once", str),
    "gamma": ("best length", str),
    "tokens_per_step": ("tokens/step of a request", decimals(2)),
    "tokens_per_second": ("tokens/s of all", speed),
    "ratio_to_plain": ("over plain", ratio),
}
POLICY_COLUMNS: Columns = {
    "policy": ("policy", str),
    "ratio_to_plain": ("modelled", ratio),
    "live_ratio_to_plain": ("live", ratio),
    "interval": ("95% interval", str),
    **named(decimals(3), "tokens_per_step"),
    "tokens_per_second": ("modelled tokens/s", speed),
    **named(speed, "live_tokens_per_second"),
    "mismatched_prompts": ("outputs that differ", decimals(0)),
    "near_ties": ("of these near-ties", decimals(0)),
    "gain": ("over best fixed", signed),
    "gain_interval": ("95% interval", str),
}


def render(runs: Sequence[JudgedRun], ranked: Sequence[Mapping[str, Any]] = ()) -> str:
    """The page of runs of different compressions, in the order to show; ``ranked`` are rows of ``draftgauge rank``."""
    if len({run.name for run in runs}) < len(runs):
        each = ", ".join(shlex.join(["draftgauge", "report", str(run.folder)]) for run in runs)
        beside = "`draftgauge report RUN --rank FILE` adds what `draftgauge rank --json FILE` wrote of drafters"
        raise TraceError(f"several of these runs have the same compression: give one run ({each}); {beside}")
    lengths = sorted({best_length(run.fixed(), 1) for run in runs})
    judged = dict.fromkeys(row["policy"] for run in runs for row in policy_rows(run, ALL_TASKS, lengths))
    facts, names = [_facts(run) for run in runs], [run.name if len(runs) > 1 else "" for run in runs]
    told = list(zip(names, runs, strict=True))
    shared = tuple(fact for fact in facts[0] if all(fact in own for own in facts))
    values = {
        "pairs": list(dict.fromkeys(_pair(run.manifest) for run in runs)),
        "tasks": list(dict.fromkeys(task for run in runs for task in run.tasks if task != ALL_TASKS)),
        "prompts": max(len(run.trace.prompts) for run in runs),
        "split": runs[0].split,
        "advice": [advise(run) for run in runs],
        "choices": _choices_chart(runs[0], lengths) if len(runs) == 1 else "",
        "acceptance": [(name, _acceptance_chart(run)) for name, run in told],
        "by_context": [(name, _context_chart(run)) for name, run in told if len(acceptance_by_context(run.trace)) > 1],
        "min_positions": MIN_POSITIONS,
        "speed": [(name, [(task, speed_chart(run, task)) for task in run.tasks]) for name, run in told],
        "cost": [(name, run.cost, _cost_chart(run)) for name, run in told],
        "batches": [
            table_of(shown_rows(batch_rows(run.trace, run.cost, run.cost.batched.batches)), BATCH_COLUMNS, name)
            for name, run in told
            if run.cost.batched is not None and run.trace.sampled is None
        ],
        "ranked": ranked_section(ranked) if ranked else None,
        "least": MIN_PROMPTS,
        "few": [task for task in runs[0].tasks if runs[0].rows[task, NO_DRAFT]["prompts"] < MIN_PROMPTS],
        "bounds": BOUNDS,
        "heat": [(name, heat_map(run, lengths)) for name, run in told if len(run.trace.prompts) >= MIN_PROMPTS],
        "tables": [(name, [policy_table(run, task, lengths) for task in run.tasks]) for name, run in told],
        "meanings": [(_title(policy), text) for policy in judged if (text := describe(policy))],
        "has_live": any("live_ratio_to_plain" in row for run in runs for row in run.rows.values()),
        "facts": (*report_facts(), *shared),
        "own_facts": [
            (run.name, own)
            for run, all_facts in zip(runs, facts, strict=True)
            if (own := tuple(fact for fact in all_facts if fact not in shared))
        ],
    }
    return render_page("report.html.j2", TITLE, values)


def advise(run: JudgedRun) -> dict[str, Any]:
    """What the top of the page says of one compression.

    ``gamma`` is the best fixed length that drafts. ``drafted_cost`` is that of drafting one token over verifying one,
    ``verify_growth`` that of verifying ``gamma + 1`` tokens over one. ``tasks`` are those with enough prompts, each
    with its best length; ``flags`` what to paste in each engine, where the verdict is to draft.
    """
    fixed = run.fixed()
    gamma = best_length(fixed, 1)
    verify = run.cost.verify[len(run.cost.contexts) // 2]
    by_task = [(task, run.fixed(task)) for task in run.tasks[1:]]
    return {
        "name": run.name,
        "verdict": run.verdict,
        "other": run.other,
        "gamma": gamma,
        "drafted_cost": run.cost.cost_ratio(),
        "verify_growth": verify[gamma] / verify[0],
        "tokens_per_step": fixed[gamma]["tokens_per_step"],
        "speeds": _speeds(run),
        "flags": _flags(run) if run.verdict.speculate and not run.verdict.unknown else [],
        "tasks": [
            (task, best_length(own), max(1.0, own[best_length(own)]["ratio_to_plain"]), _task_speed(own))
            for task, own in by_task
            if own[0]["prompts"] >= MIN_PROMPTS and not run.verdict.unknown
        ],
    }


def _plain_speed(row: Row) -> float:
    return float(row["tokens_per_second"] / row["ratio_to_plain"])


def _task_speed(fixed: Sequence[Row]) -> str:
    """Tokens a second at the best fixed length, or plain where that is faster."""
    return speed(max(_plain_speed(fixed[0]), fixed[best_length(fixed)]["tokens_per_second"]))


def _speeds(run: JudgedRun) -> tuple[str, str] | None:
    """Tokens a second, modelled, with the setting advised and of plain decoding; None where it was not replayed."""
    row = run.rows.get((ALL_TASKS, run.verdict.setting), {})
    return (speed(row["tokens_per_second"]), speed(_plain_speed(row))) if "tokens_per_second" in row else None


def _flags(run: JudgedRun) -> list[tuple[str, str]]:
    """By engine, of those that the run's own costs hold for; nothing of the bundled pair, which none knows."""
    manifest = run.manifest
    if manifest.target.source == BUNDLED:
        return []
    deployment = deployment_of(manifest, run.folder / COSTS_NAME)
    priced = [engine for engine in ENGINES.values() if engine.loop and engine.priced_by(manifest.target.engine)]
    return [
        (engine.name, flags_of(engine, run.verdict.setting, deployment, run.folder, run.split))
        for engine in priced[1:]  # the first is draftgauge's own command line
        if not engine.drafters or manifest.drafter in engine.drafters
    ]


def policy_table(run: JudgedRun, task: str, lengths: Sequence[int]) -> Table:
    rows = [
        row
        | {"interval": ends(row, "live_ratio_to_plain_", decimals(2)), "gain_interval": ends(row, "gain_", signed)}
        | {"policy": _title(row["policy"])}
        for row in policy_rows(run, task, lengths)
    ]
    return table_of(rows, POLICY_COLUMNS, "all tasks" if task == ALL_TASKS else task)


def heat_map(run: JudgedRun, lengths: Sequence[int]) -> list[tuple[str, list[Row]]]:
    """Every policy that was replayed, in the order to show, with its row of each task that has enough prompts."""
    tasks = [task for task in run.tasks if run.rows[task, NO_DRAFT]["prompts"] >= MIN_PROMPTS]
    policies = [row["policy"] for row in policy_rows(run, ALL_TASKS, lengths) if "gain" in row]
    return [(_title(policy), [run.rows[task, policy] for task in tasks]) for policy in policies]


def _choices_chart(run: JudgedRun, lengths: Sequence[int]) -> Markup:
    """Speed over plain decoding of the policies, as the verdict knows it, from the fastest to the slowest."""
    key = "live_ratio_to_plain" if run.verdict.live else "ratio_to_plain"
    keys = (key, f"{key}_low", f"{key}_high")
    rows = [row for row in policy_rows(run, ALL_TASKS, lengths) if keys[0] in row and row["policy"] not in BOUNDS]
    shown = sorted(rows, key=lambda row: -row[keys[0]])
    at, low, high = ([float(row.get(key, np.nan)) for row in shown] for key in keys)
    estimates = list(zip([_title(row["policy"]) for row in shown], at, low, high, strict=True))
    styles = [LIVE if row["policy"] == run.verdict.setting else MODELLED for row in shown]
    return interval_chart("choices", "times plain decoding; what is advised is marked", estimates, styles)


def _title(spec: str) -> str:
    return Path(spec).stem if spec.endswith(FITTED_SUFFIX) else spec


def _acceptance_chart(run: JudgedRun) -> Markup:
    """Acceptance by depth, one line a task with its 95% band."""
    rows = [row for row in acceptance_by_depth(run.trace) if int(row["positions"] or 0) >= MIN_POSITIONS]
    lines = []
    for task in run.tasks[1:] or [ALL_TASKS]:
        own = [row for row in rows if row["task"] == task]
        columns = (
            (100 * np.array([row[key] for row in own], float)).tolist() for key in ("alpha", "alpha_low", "alpha_high")
        )
        lines.append(Line(task, [int(row["depth"] or 0) for row in own], *columns))
    return line_chart(f"acceptance-{run.name}", Axes("depth in the draft (tokens)", "accepted, %", (0, 102)), lines)


def _context_chart(run: JudgedRun) -> Markup:
    """Acceptance by depth, one line a range of context lengths."""
    lines = [
        Line(name, range(1, 1 + len(rates)), [100 * rate for rate in rates])
        for name, rates in acceptance_by_context(run.trace).items()
    ]
    return line_chart(f"contexts-{run.name}", Axes("depth in the draft (tokens)", "accepted, %", (0, 102)), lines)


def speed_chart(run: JudgedRun, task: str) -> Markup:
    """Speed over plain decoding against draft length: modelled, the rules at the tokens that they draft on average,
    with the hindsight optimum, and measured live.
    """
    fixed = run.fixed(task)
    lines = [Line("fixed length", range(len(fixed)), [row["ratio_to_plain"] for row in fixed], style=MODELLED)]
    live = [(gamma, row) for gamma, row in enumerate(fixed) if "live_ratio_to_plain" in row]
    if live:
        y = [row["live_ratio_to_plain"] for _, row in live]
        low, high = (
            [float(row.get(f"live_ratio_to_plain_{end}") or at) for (_, row), at in zip(live, y, strict=True)]
            for end in ("low", "high")
        )
        lines.append(Line("live", [gamma for gamma, _ in live], y, low, high, style=LIVE, joined=False))
    columns = ("drafted_per_step", "ratio_to_plain", "ratio_to_plain_low", "ratio_to_plain_high")
    for (of, policy), row in run.rows.items():
        if of == task and row.get("drafted_per_step") and policy not in BOUNDS and not policy.startswith(FIXED):
            style = series(len(lines))
            lines.append(Line(_title(policy), *([row[key]] for key in columns), style=style, joined=False))
    bound = next(run.rows[task, name]["ratio_to_plain"] for name in reversed(BOUNDS) if (task, name) in run.rows)
    frame = Axes(
        "drafted tokens per step, \N{GREEK SMALL LETTER GAMMA}",
        "times plain decoding",
        ylim=(0, None),
        size=PANEL if task == ALL_TASKS else SMALL_PANEL,
    )
    levels = {"plain decoding": (1.0, PLAIN), "hindsight optimum": (bound, BOUND)}
    return line_chart(f"speed-{run.name}-{task}", frame, lines, levels)


def _cost_chart(run: JudgedRun) -> Markup:
    """Milliseconds of verifying and of drafting tokens by context, and of whole steps at the median one with a band."""
    cost, middle = run.cost, len(run.cost.contexts) // 2
    known = cost.measured
    timed, drafted = (
        [place for place, count in enumerate(counts) if count] if known and counts else None
        for counts in ((known.samples, known.drafts[1:]) if known else ((), ()))
    )
    shown = dict.fromkeys((0, middle, len(cost.contexts) - 1))
    lines = [
        Line(
            f"{what}, context {cost.contexts[row]}",
            range(1, len(seconds) + 1),
            [1e3 * each for each in seconds],
            marked=marked,
        )
        for row in shown
        for what, seconds, marked in (("verify k", cost.verify[row], timed), ("draft n", cost.draft[row][1:], drafted))
    ]
    whole = 1e3 * (np.asarray(cost.draft[middle]) + np.asarray(cost.verify[middle]))[1:]
    apart = known.half_width if known else 0.0
    step = f"step of n, context {cost.contexts[middle]}"
    lines.append(Line(step, range(1, 1 + len(whole)), whole, whole * (1 - apart), whole * (1 + apart), style=STEP))
    return line_chart(f"cost-{run.name}", Axes("tokens, k or n", "milliseconds", (0, None)), lines)


def _facts(run: JudgedRun) -> Facts:
    """How a run was recorded and its costs measured; what is not known is left out."""
    manifest, cost = run.manifest, run.cost
    drafts = f"drafts up to {manifest.gamma_max} tokens, outputs up to {manifest.max_new_tokens}"
    facts = {
        "recorded by": manifest.command,
        "recorded": f"{manifest.created}, draftgauge {manifest.draftgauge}",
        "target": _model(manifest.target),
        "draft": _model(manifest.draft) if manifest.draft is not None else None,
        "drafter": manifest.drafter,
        "prompts": f"{manifest.prompts.count} of {manifest.prompts.path}, SHA-256 {manifest.prompts.sha256}",
        "lengths": f"{drafts}; seed {manifest.seed}",
        "costs measured on": f"{cost.device}, {cost.dtype}, contexts of {', '.join(map(str, cost.contexts))} tokens",
        "costs interpolated": None if cost.measured is None else cost.measured.note,
    }
    return facts_of(facts | dict(manifest.environment))


def _pair(manifest: Manifest) -> str:
    drafter = manifest.drafter.replace("_", " ") if manifest.draft is None else Path(manifest.draft.source).name
    return f"{Path(manifest.target.source).name} with {drafter}"


def _model(entry: ModelEntry) -> str:
    attention = f"attention {entry.attention}, " if entry.attention else ""
    return (
        f"{entry.source}: {entry.family}, compression {entry.compression}, {entry.dtype}, {entry.engine} engine, "
        f"{attention}fingerprint {entry.fingerprint}"
    )
