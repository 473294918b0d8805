"""What a study will take, before anything starts: trainings and hours, and what of them is left in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from transformers import PreTrainedConfig

from draftgauge.studies.kvshot.ablation import FOLDER, arms
from draftgauge.studies.kvshot.cells import RESULT_NAME, Study, Variant, cell_folder, cell_name
from draftgauge.studies.kvshot.run import choose_configs
from draftgauge.studies.kvshot.tuning import TRIALS, distinct, tuned_as, tuning_path
from draftgauge.training.reuse.estimate import estimate_for
from draftgauge.training.reuse.prepare import target_config

Row = dict[str, Any]


def plan_study(study: Study, folder: Path) -> list[Row]:
    """One row a stage and one for all: ``stage, runs, left, steps, hours, hours_left``.

    Hours are those of one job after the other. Hours of training follow from the number of multiplications, see
    :mod:`draftgauge.training.reuse.estimate`, times :func:`training_pace`, what finished cells of the folder took for
    that. How long a cell is measured is known from finished cells alone: the median of those in the folder, some of
    which may have been held up; else nothing is said of it and the row ``measuring`` has no hours. The target's answers
    and held-out texts, made once, are left out.

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
    pace = training_pace(study, folder, seconds)
    seconds = {variant: pace * each for variant, each in seconds.items()}
    rows = [*_tuning(study, folder, seconds), *_cells(study, folder, seconds), *_ablation(study, folder, config, pace)]
    total: Row = {"stage": "all", "steps": None}
    total |= {key: sum(row[key] for row in rows if row["steps"] is not None) for key in ("runs", "left")}
    return [*rows, total | {key: sum(row[key] or 0.0 for row in rows) for key in ("hours", "hours_left")}]


def _tuning(study: Study, folder: Path, seconds: Mapping[Variant, float]) -> list[Row]:
    if study.tuning is None:
        return []
    each = {one: next(seconds[v] for v in study.variants if tuned_as(v) == one) for one in distinct(study.variants)}
    left = {one: each[one] for one in each if not tuning_path(folder, one).exists()}
    trials = TRIALS * len(each), TRIALS * len(left)
    steps = study.tuning.steps
    return [_row("tuning", trials, steps, *(TRIALS * steps * sum(part.values()) / 3600 for part in (each, left)))]


def _cells(study: Study, folder: Path, seconds: Mapping[Variant, float]) -> list[Row]:
    """The cells' training, and their measuring."""
    cells = [(variant, seed) for variant in study.variants for seed in study.seeds_of(variant)]
    left = [(v, seed) for v, seed in cells if not (cell_folder(folder, cell_name(v, seed)) / RESULT_NAME).exists()]
    steps = study.request.steps
    training = (steps * sum(seconds[variant] for variant, _ in part) / 3600 for part in (cells, left))
    measured = measuring_seconds(folder)
    measuring = (None if measured is None else len(part) * measured / 3600 for part in (cells, left))
    runs = len(cells), len(left)
    return [_row("training", runs, steps, *training), _row("measuring", runs, None, *measuring)]


def _ablation(study: Study, folder: Path, config: PreTrainedConfig, pace: float) -> list[Row]:
    if study.ablation is None:
        return []
    wanted = study.ablation
    layers = config.get_text_config().num_hidden_layers
    each = [
        estimate_for(replace(study.request, reuse=arm.design, **arm.settings), config).seconds_a_step
        for design in wanted.designs
        for arm in arms(design, layers)
    ]
    runs = len(each) * len(wanted.seeds)
    left = max(0, runs - len(list((folder / FOLDER).glob("*.json"))))
    hours = pace * wanted.steps * sum(each) * len(wanted.seeds) / 3600
    return [_row("ablation", (runs, left), wanted.steps, hours, hours * left / runs)]


def training_pace(study: Study, folder: Path, seconds: Mapping[Variant, float]) -> float:
    """Median over finished cells of what their training took, as a multiple of its estimate; 1 where there are none.

    Args:
        study: its configuration.
        folder: of the study.
        seconds: estimated, a step of each variant.
    """
    paces = []
    for variant in study.variants:
        for seed in study.seeds_of(variant):
            path = cell_folder(folder, cell_name(variant, seed)) / RESULT_NAME
            if path.exists():
                training = json.loads(path.read_text(encoding="utf-8"))["training"]
                paces.append(training["seconds"] / (training["steps"] * seconds[variant]))
    return median(paces) if paces else 1.0


def measuring_seconds(folder: Path) -> float | None:
    """Median of the seconds that finished cells took beside their training; None where there are none."""
    took = []
    for path in folder.glob(f"cells/*/{RESULT_NAME}"):
        document = json.loads(path.read_text(encoding="utf-8"))
        if "seconds" in document:
            took.append(max(0.0, document["seconds"] - document["training"]["seconds"]))
    return median(took) if took else None


def _row(stage: str, runs: tuple[int, int], steps: int | None, hours: float | None, hours_left: float | None) -> Row:
    return {"stage": stage, "runs": runs[0], "left": runs[1], "steps": steps, "hours": hours, "hours_left": hours_left}
