"""The report of recorded runs: which draft length to use, what it brings, and why, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from draftgauge.core.files import atomic_write_text
from draftgauge.core.printable import speed
from draftgauge.replaying.acceptance import acceptance_by_depth
from draftgauge.replaying.batch_rows import batch_rows, shown_rows
from draftgauge.replaying.evaluate import ALL_TASKS, HINDSIGHT, NEAR, near_best
from draftgauge.replaying.splits import names_splits
from draftgauge.reporting.charts import PANEL, SMALL_PANEL, Axes, Line, line_chart
from draftgauge.reporting.choosing import can_judge, choose
from draftgauge.reporting.layout import (
    Columns,
    Facts,
    Table,
    decimals,
    ends,
    facts_of,
    named,
    render_page,
    report_facts,
    table_of,
)
from draftgauge.reporting.rows import Row, Run, best_length, describe, fixed_name, policy_rows, read_runs
from draftgauge.reporting.style import Series, compression_title, ratio
from draftgauge.reporting.timeline import KINDS, Timeline, replay_timeline, representative_prompts
from draftgauge.traces.manifest import ModelEntry

TITLE = "How far to draft"
MIN_POSITIONS = 20  # of fewer drafts that came to a depth, a rate and its interval would say more than is known
TIMELINES = 4  # of one compression
PLAIN, BOUND, LIVE = Series("muted", (1.2, 1.8)), Series("green", (6, 2)), Series("vermillion", (), "D")
MODELLED = Series("blue", (), "o")
BATCH_COLUMNS: Columns = {
    "batch": ("requests at once", str),
    "gamma": ("best length", str),
    "tokens_per_step": ("tokens/step of a request", decimals(2)),
    "tokens_per_second": ("tokens/s of all", speed),
    "ratio_to_none": ("over no drafts", ratio),
}
POLICY_COLUMNS: Columns = {
    "policy": ("policy", str),
    "ratio_to_plain": ("modelled", ratio),
    "live_ratio": ("live", ratio),
    "interval": ("95% interval", str),
    **named(decimals(3), "tokens_per_step"),
    "tokens_per_second": ("modelled tokens/s", speed),
    **named(speed, "live_tokens_per_second"),
    **named(decimals(0), "mismatches"),
}


def build_report(
    run_folders: Sequence[Path],
    out: Path,
    bench: Sequence[Mapping[str, Any]] | None = None,
    title: str = TITLE,
    command: str | None = None,
    policies: Sequence[str] | None = None,
    fitted: Sequence[str] = (),
) -> Path:
    """Read recorded runs, replay them and write the report.

    Args:
        run_folders: one run folder per compression, as ``draftgauge profile`` writes them, in the order to show.
        out: the HTML file to write; its folder must exist.
        bench: rows of ``draftgauge bench``, which stand beside what is modelled.
        title: of the page.
        command: that asked for the report, named on the page; the running one if None.
        policies: specs of policies to judge on test prompts, beside the standard ones. If None, the standard ones are
            judged where the prompts name enough training and test ones.
        fitted: fitted policies to judge with them where there are enough prompts, named or divided.

    Returns:
        ``out``.

    Raises:
        TraceError: if a folder holds no readable run, two folders the same compression, or too few prompts to judge
            policies on.
        DraftgaugeError: if a measurement lacks what all of them have, a policy cannot be made, or the file not written.
    """
    runs = read_runs(run_folders, bench or ())
    atomic_write_text(out, render(runs, title, command, policies, fitted))
    return out


def render(
    runs: Sequence[Run],
    title: str = TITLE,
    command: str | None = None,
    policies: Sequence[str] | None = None,
    fitted: Sequence[str] = (),
) -> str:
    """The page as text."""
    lengths = sorted({best_length(run.fixed(), 1) for run in runs})
    judged = [
        run
        for run in runs
        if policies is not None or (can_judge(run.trace) and (bool(fitted) or names_splits(run.trace)))
    ]
    timelines = [(run.name, _timelines(run)) for run in runs]
    facts = [_facts(run) for run in runs]
    shared = tuple(fact for fact in facts[0] if all(fact in own for own in facts))
    values = {
        "tasks": list(dict.fromkeys(task for run in runs for task in run.tasks if task != ALL_TASKS)),
        "prompts": max(len(run.trace.prompts) for run in runs),
        "advice": [advise(run) for run in runs],
        "near": f"{100 * NEAR:.0f}",
        "acceptance": [(run.name, _acceptance_chart(run)) for run in runs],
        "min_positions": MIN_POSITIONS,
        "speed": [(run.name, [(task, speed_chart(run, task)) for task in run.tasks]) for run in runs],
        "cost": [(run.name, run.cost, _cost_chart(run)) for run in runs],
        "batches": [
            table_of(shown_rows(batch_rows(run.trace, run.cost, run.cost.batched.batches)), BATCH_COLUMNS, run.name)
            for run in runs
            if run.cost.batched is not None and run.trace.sampled is None
        ],
        "policies": side_by_side(runs, lengths),
        "tables": [(run.name, [policy_table(run, task, lengths) for task in run.tasks]) for run in runs],
        "has_live": any("live_ratio" in row for run in runs for row in run.rows.values()),
        "choices": [choose(run, (*(policies or ()), *fitted)) for run in judged],
        "timelines": timelines,
        "kinds": {kind: text for kind, text in KINDS.items() if kind in _kinds(timelines)},
        "facts": (*report_facts(command), *shared),
        "own_facts": [
            (run.name, own)
            for run, all_facts in zip(runs, facts, strict=True)
            if (own := tuple(fact for fact in all_facts if fact not in shared))
        ],
    }
    return render_page("report.html.j2", title, values)


def advise(run: Run) -> dict[str, Any]:
    """What the top of the page says of one compression.

    ``gamma`` is the best length; where drafting does not pay, the best of those that draft. ``ratio`` and ``bound``
    (of the hindsight optimum) are over plain decoding; ``drafted_cost`` is that of one more drafted token over
    verifying one, ``verify_growth`` that of verifying ``gamma + 1`` tokens over one. ``live`` holds what was measured
    at that length: of all tasks together, else of each.
    """
    fixed = run.fixed()
    gamma = best_length(fixed, 1)
    shortest, longest = near_best([row["tokens_per_second"] for row in fixed])
    verify = run.cost.verify[len(run.cost.contexts) // 2]
    measured = {task: run.rows[task, fixed_name(gamma)].get("live_ratio") for task in run.tasks}
    live = [value for value in ([measured[ALL_TASKS]] if measured[ALL_TASKS] else measured.values()) if value]
    pays = _pays(fixed)
    return {
        "name": run.name,
        "pays": pays,
        "gamma": gamma,
        "ratio": fixed[gamma]["ratio_to_plain"],
        "bound": run.rows[ALL_TASKS, HINDSIGHT]["ratio_to_plain"],
        "live": sorted(live),
        "drafted_cost": run.cost.cost_ratio(),
        "verify_growth": verify[gamma] / verify[0],
        "tokens_per_step": fixed[gamma]["tokens_per_step"],
        "near": (shortest, longest) if pays and shortest < longest else None,
        "held_out": run.held_out,
        "tasks": [
            (
                task,
                best_length(own) if _pays(own) else 0,
                own[best_length(own)]["ratio_to_plain"] if _pays(own) else 1.0,
            )
            for task, own in ((task, run.fixed(task)) for task in run.tasks[1:])
        ],
    }


def _pays(fixed: Sequence[Row]) -> bool:
    """Whether the best length drafts at all and is faster than plain decoding."""
    best = best_length(fixed)
    return best > 0 and fixed[best]["ratio_to_plain"] > 1


def policy_table(run: Run, task: str, lengths: Sequence[int]) -> Table:
    """Every policy on one task of a compression."""
    rows = [row | {"interval": ends(row, "live_", decimals(2))} for row in policy_rows(run, task, lengths)]
    return table_of(rows, POLICY_COLUMNS, "all tasks" if task == ALL_TASKS else task)


def side_by_side(runs: Sequence[Run], lengths: Sequence[int]) -> Table:
    """Policies against compressions, modelled over all prompts."""
    lines: dict[str, Row] = {}
    for run in runs:
        for row in policy_rows(run, ALL_TASKS, lengths):
            if "ratio_to_plain" in row:
                line = lines.setdefault(row["policy"], {"policy": row["policy"], "what": describe(row["policy"])})
                line |= {run.name: row["ratio_to_plain"]} | ({"kind": row["kind"]} if len(runs) == 1 else {})
    columns = {run.name: (compression_title(run.name), ratio) for run in runs}
    return table_of(list(lines.values()), {"policy": ("policy", str)} | columns | {"what": ("what it does", str)})


def _acceptance_chart(run: Run) -> Markup:
    """Acceptance by depth, one line a task with its 95% band."""
    rows = [row for row in acceptance_by_depth(run.trace) if int(row["positions"] or 0) >= MIN_POSITIONS]
    lines = []
    for task in run.tasks[1:] or [ALL_TASKS]:
        own = [row for row in rows if row["task"] == task]
        columns = ([100 * float(row[key] or np.nan) for row in own] for key in ("rate", "low", "high"))
        lines.append(Line(task, [int(row["depth"] or 0) for row in own], *columns))
    return line_chart(f"acceptance-{run.name}", Axes("depth in the draft (tokens)", "accepted, %", (0, 102)), lines)


def speed_chart(run: Run, task: str) -> Markup:
    """Speed over plain decoding against draft length: modelled, with the hindsight optimum, and measured live."""
    fixed = run.fixed(task)
    lines = [Line("fixed length", range(len(fixed)), [row["ratio_to_plain"] for row in fixed], style=MODELLED)]
    live = [(gamma, row) for gamma, row in enumerate(fixed) if "live_ratio" in row]
    if live:
        y = [row["live_ratio"] for _, row in live]
        low, high = ([float(row.get(f"live_{end}") or row["live_ratio"]) for _, row in live] for end in ("low", "high"))
        lines.append(Line("live", [gamma for gamma, _ in live], y, low, high, style=LIVE, joined=False))
    bound = run.rows[task, HINDSIGHT]["ratio_to_plain"]
    frame = Axes(
        "drafted tokens per step, \N{GREEK SMALL LETTER GAMMA}",
        "times plain decoding",
        ylim=(0, None),
        size=PANEL if task == ALL_TASKS else SMALL_PANEL,
    )
    levels = {"plain decoding": (1.0, PLAIN), "hindsight optimum": (bound, BOUND)}
    return line_chart(f"speed-{run.name}-{task}", frame, lines, levels)


def _cost_chart(run: Run) -> Markup:
    """Milliseconds of verifying and of drafting tokens, at the shortest, the median and the longest context."""
    cost = run.cost
    shown = dict.fromkeys((0, len(cost.contexts) // 2, len(cost.contexts) - 1))
    lines = [
        Line(f"{what}, context {cost.contexts[row]}", range(1, len(seconds) + 1), [1e3 * each for each in seconds])
        for row in shown
        for what, seconds in (("verify k", cost.verify[row]), ("draft n", cost.draft[row][1:]))
    ]
    return line_chart(f"cost-{run.name}", Axes("tokens, k or n", "milliseconds", (0, None)), lines)


def _timelines(run: Run) -> list[Timeline]:
    tasks = {info.task for info in run.trace.prompts}
    texts, gamma = run.texts(), best_length(run.fixed(), 1)
    chosen = representative_prompts(run.trace, per_task=2 if 2 * len(tasks) <= TIMELINES else 1)
    return [replay_timeline(run.trace, prompt, gamma, texts) for prompt in chosen]


def _kinds(timelines: Sequence[tuple[str, Sequence[Timeline]]]) -> set[str]:
    return {token.kind for _, lines in timelines for line in lines for step in line.steps for token in step}


def _facts(run: Run) -> Facts:
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


def _model(entry: ModelEntry) -> str:
    attention = f"attention {entry.attention}, " if entry.attention else ""
    return (
        f"{entry.source}: {entry.family}, compression {entry.compression}, {entry.dtype}, {entry.engine} engine, "
        f"{attention}fingerprint {entry.fingerprint}"
    )
