"""From recorded runs and live measurements to what the report shows, by :mod:`draftgauge.replaying`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.replaying import (
    ALL_TASKS,
    Replay,
    acceptance_by_depth,
    hindsight_optimum,
    plain_seconds,
    replay_fixed_all,
    task_masks,
)
from draftgauge.replaying.batch_rows import batch_rows, shown_rows
from draftgauge.replaying.splits import names_splits
from draftgauge.reporting.choosing import can_judge, choosing_view
from draftgauge.reporting.data import ReportData
from draftgauge.reporting.facts import Facts, report_facts, run_facts, split_facts
from draftgauge.reporting.live import LiveRow, live_rows
from draftgauge.reporting.rows import table_rows
from draftgauge.reporting.style import compression_title, ratio
from draftgauge.reporting.table import Columns, Table, decimals, table_of
from draftgauge.reporting.timeline import replay_timeline, representative_prompts
from draftgauge.reporting.views import AcceptanceCurve, CompressionView, LivePoint, SpeedCurve, Timeline
from draftgauge.traces.costs import CostCurve, run_costs
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import read_trace
from draftgauge.traces.shards import read_shard, shard_paths
from draftgauge.traces.trace import Trace

# Of fewer drafts that came to a depth, a rate and its interval would say more than is known.
MIN_POSITIONS = 20
BATCH_COLUMNS: Columns = {
    "batch": ("requests at once", str),
    "gamma": ("best length", str),
    "tokens_per_step": ("tokens/step of a request", decimals(2)),
    "tokens_per_second": ("tokens/s of all", decimals(0)),
    "ratio_to_none": ("over no drafts", ratio),
}

# Timelines of one compression; more would bury the rest of the page.
TIMELINES = 4


@dataclass(frozen=True)
class Run:
    """One recorded run with its replays: ``fixed[g]`` drafts ``g`` tokens at every step."""

    folder: Path
    manifest: Manifest
    trace: Trace
    cost: CostCurve
    fixed: list[Replay]
    hindsight: Replay
    plain_seconds: NDArray[np.float64]
    live: tuple[LiveRow, ...]


def collect(
    run_folders: Sequence[Path],
    bench_rows: Sequence[Mapping[str, Any]] | None = None,
    command: str | None = None,
    policies: Sequence[str] | None = None,
    fitted: Sequence[str] = (),
) -> ReportData:
    """Read and replay runs.

    Args:
        run_folders: one run folder per compression, in the order to show.
        bench_rows: live measurements with the keys ``policy, compression, task, tokens_per_second, mismatches`` and,
            where known, ``ratio_to_plain``, ``ratio_to_plain_low``, ``ratio_to_plain_high`` and
            ``tokens_per_step``. The task of all prompts together is ``all``, plain decoding is the policy ``plain``.
            Rows of compressions without a run are left out.
        command: that asked for the report; the running one if None.
        policies: specs of policies to judge on test prompts, beside the standard ones. If None, the standard ones are
            judged where the prompts name enough training and test ones.
        fitted: fitted policies to judge with them where there are enough prompts, named or divided.

    Raises:
        TraceError: if a folder holds no readable run, two folders the same compression, or too few prompts to judge
            policies on.
        DraftgaugeError: if a measurement lacks what all of them have, or a policy cannot be made.
    """
    if not run_folders:
        raise TraceError("a report needs at least one recorded run; record one with `draftgauge profile`")
    live = live_rows(bench_rows or ())
    runs = [_read(folder, live) for folder in run_folders]
    names = [run.manifest.target.compression for run in runs]
    if len(set(names)) < len(names):
        raise TraceError(f"two of the runs have the same compression ({', '.join(names)}); give one run for each")
    shared, own = split_facts([run_facts(run.manifest, run.cost) for run in runs])
    speeds = [_speeds(run) for run in runs]
    lengths = sorted({curves[0].best_draft for curves in speeds})
    views = tuple(_view(run, curves, lengths, facts) for run, curves, facts in zip(runs, speeds, own, strict=True))
    asked = policies is not None
    chosen = [run for run in runs if asked or (can_judge(run.trace) and (bool(fitted) or names_splits(run.trace)))]
    judged = tuple(choosing_view(run.trace, run.cost, (*(policies or ()), *fitted), _texts(run)) for run in chosen)
    batches = tuple(_batches(run) for run in runs if run.cost.batched is not None and run.trace.sampled is None)
    return ReportData(views, report_facts(command) + shared, judged, batches)


def _read(folder: Path, live: Sequence[LiveRow]) -> Run:
    manifest, trace, cost = Manifest.load(folder), read_trace(folder), run_costs(folder)
    return Run(
        folder=folder,
        manifest=manifest,
        trace=trace,
        cost=cost,
        fixed=replay_fixed_all(trace, cost),
        hindsight=hindsight_optimum(trace, cost).replay,
        plain_seconds=plain_seconds(trace, cost),
        live=tuple(row for row in live if row.compression == trace.compression),
    )


def _view(run: Run, speeds: tuple[SpeedCurve, ...], lengths: Sequence[int], facts: Facts) -> CompressionView:
    return CompressionView(
        name=run.trace.compression,
        cost=run.cost,
        prompts=len(run.trace.prompts),
        acceptance=_acceptance(run.trace),
        speeds=speeds,
        rows=table_rows(run.trace, run.cost, run.fixed, run.hindsight, speeds, lengths, run.live),
        timelines=_timelines(run, speeds[0].best_draft),
        provenance=facts,
    )


def _batches(run: Run) -> Table:
    """The best fixed length by batch size."""
    assert run.cost.batched is not None
    rows = shown_rows(batch_rows(run.trace, run.cost, run.cost.batched.batches))
    return table_of(rows, BATCH_COLUMNS, compression_title(run.trace.compression))


def _speeds(run: Run) -> tuple[SpeedCurve, ...]:
    """The curve of all prompts, then, where there are several tasks, of each."""
    masks = dict(task_masks(run.trace))
    tasks = [ALL_TASKS] + [task for task in masks if task != ALL_TASKS and len(masks) > 2]
    return tuple(_speed(run, task, masks[task]) for task in tasks)


def _speed(run: Run, task: str, mask: NDArray[np.bool_]) -> SpeedCurve:
    seconds = np.stack([outcome.seconds[mask] for outcome in run.fixed])  # [G + 1, prompts]
    tokens = int(run.fixed[0].committed[mask].sum())
    steps = [int(outcome.steps[mask].sum()) for outcome in run.fixed]
    points = [
        LivePoint(row.gamma, row.ratio_to_plain, row.low, row.high)
        for row in run.live
        if row.task == task
        and row.gamma is not None
        and row.ratio_to_plain is not None
        and row.gamma <= run.trace.gamma_max
    ]
    return SpeedCurve(
        task=task,
        tokens_per_step=tuple(tokens / count for count in steps),
        tokens_per_second=tuple(float(tokens / total) for total in seconds.sum(axis=1)),
        plain=float(tokens / run.plain_seconds[mask].sum()),
        hindsight=float(tokens / run.hindsight.seconds[mask].sum()),
        held_out=_held_out(seconds, tokens),
        live=tuple(points),
    )


def _held_out(seconds: NDArray[np.float64], tokens: int) -> float | None:
    """Tokens/s with the length of each prompt chosen on all others; the tokens are the same whatever the length."""
    prompts = seconds.shape[1]
    if prompts < 2:
        return None
    others = seconds.sum(axis=1, keepdims=True) - seconds  # [G + 1, prompts]
    return float(tokens / seconds[others.argmin(axis=0), np.arange(prompts)].sum())


def _acceptance(trace: Trace) -> tuple[AcceptanceCurve, ...]:
    rows = acceptance_by_depth(trace)
    tasks = [task for task, _ in task_masks(trace) if task != ALL_TASKS] or [ALL_TASKS]
    return tuple(_acceptance_curve(task, [row for row in rows if row["task"] == task]) for task in tasks)


def _acceptance_curve(task: str, rows: Sequence[Mapping[str, Any]]) -> AcceptanceCurve:
    kept = [row if row["positions"] >= MIN_POSITIONS else {} for row in rows]
    rate, low, high = (tuple(_number(row.get(key)) for row in kept) for key in ("rate", "low", "high"))
    return AcceptanceCurve(task, rate, low, high)


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _timelines(run: Run, gamma: int) -> tuple[Timeline, ...]:
    tasks = {info.task for info in run.trace.prompts}
    texts = _texts(run)
    chosen = representative_prompts(run.trace, per_task=2 if 2 * len(tasks) <= TIMELINES else 1)
    return tuple(replay_timeline(run.trace, prompt, gamma, texts) for prompt in chosen)


def _texts(run: Run) -> list[str]:
    """The decoded piece of every row of the trace."""
    pieces: dict[int, list[str]] = {info.index: [] for info in run.trace.prompts}
    for path in shard_paths(run.folder):
        table = read_shard(path, run.manifest.fingerprint()).table
        for index, text in zip(table["prompt_index"].to_pylist(), table["text"].to_pylist(), strict=True):
            pieces[index].append(text)
    return [piece for info in run.trace.prompts for piece in pieces[info.index]]
