"""What a study will take, before anything starts: trainings and hours, and what of them is left in its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.studies.kvshot.ablation import arms
from draftgauge.studies.kvshot.cells import RESULT_NAME, Study, cell_folder, cell_name
from draftgauge.studies.kvshot.run import choose_configs
from draftgauge.studies.kvshot.tuning import TRIALS, distinct, tuned_as, tuning_path
from draftgauge.training.reuse.estimate import estimate_for
from draftgauge.training.reuse.prepare import target_config

Row = dict[str, Any]


def plan_study(study: Study, folder: Path) -> list[Row]:
    """One row a stage and one for all: ``stage, runs, left, steps, hours, hours_left``.

    Hours of training follow from the number of multiplications, see :mod:`draftgauge.training.reuse.estimate`. How long
    a cell is measured is known from cells that are finished: the mean of those in the folder, else nothing is said of
    it and the row ``measuring`` has no hours. The target's answers and held-out texts, made once, are left out.

    Args:
        study: its configuration.
        folder: of the study, which need not be there.

    Raises:
        DraftgaugeError: if the target's configuration cannot be read.
    """
    config = target_config(study.request)
    widths = {variant: one.intermediate_size for variant, one in choose_configs(study, config).items()}
    seconds = {
        variant: estimate_for(variant.request(study.request, widths[variant], 0, None), config).seconds_a_step
        for variant in study.variants
    }
    rows = []
    if study.tuning is not None:
        rows_tuned = distinct(study.variants)
        each = {one: next(seconds[v] for v in study.variants if tuned_as(v) == one) for one in rows_tuned}
        left = [one for one in rows_tuned if not tuning_path(folder, one).exists()]
        steps = study.tuning.steps
        hours = (TRIALS * steps * sum(each[one] for one in part) / 3600 for part in (rows_tuned, left))
        rows.append(_row("tuning", (TRIALS * len(rows_tuned), TRIALS * len(left)), steps, *hours))
    cells = [(variant, seed) for variant in study.variants for seed in study.seeds_of(variant)]
    waiting = [(v, s) for v, s in cells if not (cell_folder(folder, cell_name(v, s)) / RESULT_NAME).exists()]
    steps = study.request.steps
    hours = (steps * sum(seconds[variant] for variant, _ in part) / 3600 for part in (cells, waiting))
    rows.append(_row("training", (len(cells), len(waiting)), steps, *hours))
    measured = measuring_seconds(folder)
    both: tuple[float | None, float | None]
    both = (len(cells) * measured / 3600, len(waiting) * measured / 3600) if measured is not None else (None, None)
    rows.append(_row("measuring", (len(cells), len(waiting)), None, *both))
    if study.ablation is not None:
        part = study.ablation
        online = replace(study.request, features="online", cache=None)
        layers = config.get_text_config().num_hidden_layers
        number = {design: len(arms(design, layers)) for design in part.designs}
        runs = sum(number.values()) * len(part.seeds)
        each_step = {
            design: estimate_for(replace(online, reuse=design), config).seconds_a_step for design in part.designs
        }
        hour = part.steps * sum(each_step[d] * number[d] for d in part.designs) * len(part.seeds) / 3600
        done = len(list((folder / "ablation").glob("*.json")))
        rows.append(_row("ablation", (runs, max(0, runs - done)), part.steps, hour, hour * max(0, runs - done) / runs))
    total = {
        key: sum(row[key] for row in rows if row[key] is not None) for key in ("runs", "left", "hours", "hours_left")
    }
    return [*rows, {"stage": "all", "steps": None} | total]


def measuring_seconds(folder: Path) -> float | None:
    """Mean seconds that finished cells took beside their training; None where there are none."""
    took = []
    for path in folder.glob(f"cells/*/{RESULT_NAME}"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if "seconds" in document:
            took.append(max(0.0, document["seconds"] - document["training"]["seconds"]))
    return sum(took) / len(took) if took else None


def _row(stage: str, runs: tuple[int, int], steps: int | None, hours: float | None, hours_left: float | None) -> Row:
    return {"stage": stage, "runs": runs[0], "left": runs[1], "steps": steps, "hours": hours, "hours_left": hours_left}
