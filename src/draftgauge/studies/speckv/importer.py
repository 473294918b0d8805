"""Reads the published tables of SpecKV (arXiv 2605.02888), checked row by row.

The table of steps names no prompt. Step 0 starts a run, and runs have the order of the table of experiments, which
names their prompts.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftgauge.core.errors import DraftgaugeError
from draftgauge.studies.speckv.records import COMPRESSIONS, GAMMAS, SIGNALS, TASKS, Ints, Records, Runs, Steps

STEP_COLUMNS = ("compression", "gamma", "task", "step", "accepted", "acceptance_rate", "tokens_produced", *SIGNALS)
EXPERIMENT_COLUMNS = (
    *("compression", "gamma", "task", "prompt", "num_tokens", "elapsed_sec", "tokens_per_sec", "mean_acceptance_rate"),
    "num_steps",
)
MAX_NEW_TOKENS = 80
"""Length limit of the published runs."""
ROUNDED = 5.1e-5  # half a unit of the fourth decimal, to which the means are rounded


@dataclass(frozen=True)
class Row:
    """One line of a CSV file; its readers raise a :class:`DraftgaugeError` with the file, the line and the column."""

    file: Path
    line: int
    cells: Mapping[str, str]

    def error(self, message: str) -> DraftgaugeError:
        return DraftgaugeError(f"{self.file}, line {self.line}: {message}")

    def choice(self, column: str, choices: Sequence[str]) -> int:
        name = self.cells[column]
        if name not in choices:
            raise self.error(f"unknown {column} {name!r}; known are {', '.join(choices)}")
        return choices.index(name)

    def integer(self, column: str, low: int) -> int:
        text = self.cells[column]
        try:
            value = int(text)
        except ValueError:
            raise self.error(f"{column} must be a whole number, not {text!r}") from None
        if value < low:
            raise self.error(f"{column} must be at least {low}, not {value}")
        return value

    def number(self, column: str, low: float, high: float = math.inf) -> float:
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"{column} must be a number, not {text!r}") from None
        if not (math.isfinite(value) and low <= value <= high):
            wanted = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise self.error(f"{column} must be {wanted}, not {text}")
        return value


def read_table(path: Path, columns: Sequence[str]) -> list[Row]:
    """Read a CSV file with a heading; columns beyond those asked for are left alone."""
    rows: list[Row] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            heading = next(reader, [])
            missing = [column for column in columns if column not in heading]
            if missing:
                many = "s" if len(missing) > 1 else ""
                raise DraftgaugeError(f"{path}, line 1: missing column{many} {', '.join(missing)}")
            for cells in reader:  # a row's line is the one it ends on, as a quoted cell may hold line breaks
                if len(cells) not in (0, len(heading)):  # many files end with blank lines
                    raise DraftgaugeError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells, "
                        f"but the heading has {len(heading)} columns"
                    )
                if cells:
                    rows.append(Row(path, reader.line_num, dict(zip(heading, cells, strict=True))))
    except csv.Error as error:
        raise DraftgaugeError(f"{path}, line {reader.line_num}: not CSV ({error})") from error
    except OSError as error:
        raise DraftgaugeError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DraftgaugeError(f"{path} is not text in UTF-8; give a CSV file") from error
    if not rows:
        raise DraftgaugeError(f"{path} has a heading but no rows")
    return rows


@dataclass(frozen=True)
class _Step:
    """A checked row; ``drafted`` is None where nothing was accepted, since any length explains a rate of 0."""

    row: Row
    cell: tuple[int, int, int]  # compression, gamma, task
    accepted: int
    drafted: int | None
    rate: float
    signals: tuple[float, ...]


def read_records(steps: Path, experiments: Path) -> Records:
    """Read the table of steps and the table of experiments.

    Args:
        steps: ``phase2_step_results.csv`` of the paper's author, or a file with its columns.
        experiments: ``phase2_experiment_results.csv``: prompts, wall-clock times and speeds of the runs.
    """
    runs = _recover_runs([_checked(row) for row in read_table(steps, STEP_COLUMNS)])
    drafted = [length for run in runs for length in _draft_lengths(run)]
    rows = read_table(experiments, EXPERIMENT_COLUMNS)
    _match(rows, runs, steps)
    flat = [step for run in runs for step in run]
    compression, gamma, task = np.array([step.cell for step in flat]).T
    table = Steps(
        compression=compression,
        task=task,
        gamma=gamma,
        accepted=np.array([step.accepted for step in flat]),
        drafted=np.array(drafted),
        rate=np.array([step.rate for step in flat]),
        signals=np.array([step.signals for step in flat]),
        run=np.repeat(np.arange(len(runs)), [len(run) for run in runs]),
    )
    _require_grid(table, steps)
    compression, gamma, task = np.array([run[0].cell for run in runs]).T
    counts, drafts, tokens = (np.bincount(table.run, by).astype(np.int64) for by in (None, table.drafted, table.tokens))
    seconds, speed = (np.array([row.number(key, 1e-3) for row in rows]) for key in ("elapsed_sec", "tokens_per_sec"))
    return Records(table, Runs(compression, task, gamma, _prompts(rows), counts, drafts, tokens, seconds, speed))


def _checked(row: Row) -> _Step:
    compression, gamma, task = _cell(row)
    accepted, rate = row.integer("accepted", 0), row.number("acceptance_rate", 0.0, 1.0)
    if accepted > gamma:
        raise row.error(f"{accepted} accepted of a draft of at most {gamma}")
    if row.integer("tokens_produced", 1) != accepted + 1:
        raise row.error(f"tokens_produced must be accepted + 1 = {accepted + 1}, not {row.cells['tokens_produced']}")
    lengths = [length for length in range(max(1, accepted), gamma + 1) if abs(rate - accepted / length) < ROUNDED]
    if not lengths:
        raise row.error(
            f"no draft length up to gamma {gamma} explains an acceptance_rate of {rate:g} with {accepted} accepted"
        )
    entropy, top_entropy = row.number("mean_draft_entropy", 0.0), row.number("max_draft_entropy", 0.0)
    confidence, least = row.number("mean_draft_confidence", 0.0, 1.0), row.number("min_draft_confidence", 0.0, 1.0)
    if entropy > top_entropy + ROUNDED or confidence < least - ROUNDED:
        raise row.error("the mean entropy must not exceed the maximum, nor the mean confidence fall below the minimum")
    drafted = lengths[0] if accepted else None
    return _Step(row, (compression, gamma, task), accepted, drafted, rate, (entropy, confidence, top_entropy, least))


def _cell(row: Row) -> tuple[int, int, int]:
    compression, task = row.choice("compression", COMPRESSIONS), row.choice("task", TASKS)
    gamma = row.integer("gamma", 1)
    if gamma not in GAMMAS:
        raise row.error(f"gamma must be one of {', '.join(map(str, GAMMAS))}, not {gamma}")
    return compression, gamma, task


def _recover_runs(steps: list[_Step]) -> list[list[_Step]]:
    """Step 0 starts a run; within one, steps count up and the setting stays."""
    runs: list[list[_Step]] = []
    for step in steps:
        number = step.row.integer("step", 0)
        if number == 0:
            runs.append([])
        elif not runs or number != len(runs[-1]):
            raise step.row.error(
                f"step {number} where step {len(runs[-1]) if runs else 0} or a new run's step 0 must come"
            )
        elif step.cell != runs[-1][0].cell:
            raise step.row.error("compression, gamma or task changes within a run; a new run begins with step 0")
        runs[-1].append(step)
    return runs


def _draft_lengths(run: list[_Step]) -> list[int]:
    """What each step of a run drafted: gamma, or what was left below the length limit. A rate over a shorter draft
    tells the limit, and a run commits at most one token beyond it."""
    gamma = run[0].cell[1]
    before = np.cumsum([0, *(step.accepted + 1 for step in run)])
    limits = []
    for step, committed in zip(run, before[:-1].tolist(), strict=True):
        if step.drafted is not None and step.drafted < gamma:
            limits.append(committed + step.drafted)
            if before[-1] > limits[-1] + 1:
                raise step.row.error(
                    f"acceptance_rate {step.rate:g} means a draft of {step.drafted}, shorter than gamma {gamma}, which "
                    f"only the end of a run explains; this run goes on to {before[-1]} tokens"
                )
    limit = max(limits, default=MAX_NEW_TOKENS)
    left = [min(gamma, limit - committed) if committed < limit else gamma for committed in before[:-1].tolist()]
    return [room if step.drafted is None else step.drafted for step, room in zip(run, left, strict=True)]


def _match(rows: list[Row], runs: list[list[_Step]], steps: Path) -> None:
    """Make sure that the n-th experiment is the n-th run."""
    if len(rows) != len(runs):
        raise DraftgaugeError(
            f"{rows[0].file} holds {len(rows)} experiments, but {steps} {len(runs)} runs; give the two tables of one "
            "study"
        )
    for row, run in zip(rows, runs, strict=True):
        tokens, rate = sum(step.accepted + 1 for step in run), float(np.mean([step.rate for step in run]))
        begins = f"the run that begins at line {run[0].row.line} of {steps.name}"
        if _cell(row) != run[0].cell:
            raise row.error(f"compression, gamma or task is not that of {begins}")
        if row.integer("num_steps", 1) != len(run) or row.integer("num_tokens", 1) != tokens:
            raise row.error(f"num_steps and num_tokens must be {len(run)} and {tokens}, as in {begins}")
        if abs(row.number("mean_acceptance_rate", 0.0, 1.0) - rate) > 2 * ROUNDED:
            raise row.error(f"mean_acceptance_rate is not {rate:.4f}, that of {begins}")


def _prompts(rows: list[Row]) -> Ints:
    """``[R]`` prompt of each run, numbered as they first come."""
    task_of: dict[str, str] = {}
    runs: set[tuple[str, ...]] = set()
    for row in rows:
        if task_of.setdefault(row.cells["prompt"], row.cells["task"]) != row.cells["task"]:
            raise row.error("this prompt has another task in an earlier run")
        run = tuple(row.cells[key] for key in ("prompt", "compression", "gamma"))
        if run in runs:
            raise row.error("this prompt has an earlier run of the same compression and gamma: keep one of them")
        runs.add(run)
    index = {name: number for number, name in enumerate(task_of)}
    return np.array([index[row.cells["prompt"]] for row in rows])


def _require_grid(steps: Steps, path: Path) -> None:
    """Every compression, gamma and task must have been run, with steps enough to split in two."""
    combinations = Counter(zip(steps.compression.tolist(), steps.gamma.tolist(), steps.task.tolist(), strict=True))
    for compression, name in enumerate(COMPRESSIONS):
        for task, kind in enumerate(TASKS):
            counts = [combinations[compression, gamma, task] for gamma in GAMMAS]
            if not all(counts) or sum(counts) < 10:
                lacking = ", ".join(str(gamma) for gamma, count in zip(GAMMAS, counts, strict=True) if not count)
                what = f"no steps at gamma {lacking}" if lacking else f"only {sum(counts)} steps; 10 are needed"
                raise DraftgaugeError(
                    f"{path}: {name}, {kind}: {what}. The study compares every compression, gamma and task"
                )
