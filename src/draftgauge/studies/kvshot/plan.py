"""What a study will take, before anything starts: trainings and hours, and what of them is left in its folder."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from draftgauge.studies.kvshot.cells import KEPT, RESULT_NAME, Study, cell_folder, cell_name
from draftgauge.studies.kvshot.results import Row
from draftgauge.studies.kvshot.run import choose_configs
from draftgauge.studies.kvshot.tuning import distinct, tuning_path
from draftgauge.training.reuse.estimate import estimate_for
from draftgauge.training.reuse.prepare import target_config


def plan_study(study: Study, folder: Path) -> list[Row]:
    """One row per stage and one for all: ``stage, runs, left, steps, hours, hours_left``, one job after the other.

    Hours of training follow from the number of multiplications, see :mod:`draftgauge.training.reuse.estimate`. They are
    scaled by what the folder's finished cells took, evaluation included, over their estimate (the median). Answers and
    held-out texts, made once, are left out.
    """
    config = target_config(study.request)
    configs = choose_configs(study, config)
    seconds = {
        variant: estimate_for(variant.request(study.request, one.intermediate_size), config).seconds_a_step
        for variant, one in configs.items()
    }
    cells = {
        cell_folder(folder, cell_name(variant, seed)) / RESULT_NAME: study.request.steps * seconds[variant]
        for variant in study.variants
        for seed in study.seeds_of(variant)
    }
    paces = [KEPT.read(path)["seconds"] / estimate for path, estimate in cells.items() if path.exists()]
    pace = median(paces) if paces else 1.0
    rows = []
    if study.tuning is not None:
        trials = {
            tuning_path(folder, one): study.tuning.trials
            * study.tuning.steps
            * next(seconds[variant] for variant in study.variants if variant.tuned_as == one)
            for one in distinct(study.variants)
        }
        rows.append(_row("tuning", trials, study.tuning.steps, pace, study.tuning.trials))
    rows.append(_row("cells", cells, study.request.steps, pace, 1))
    total = {key: sum(row[key] for row in rows) for key in ("runs", "left", "hours", "hours_left")}
    return [*rows, {"stage": "all", "steps": None} | total]


def _row(stage: str, jobs: dict[Path, float], steps: int, pace: float, runs: int) -> Row:
    left = [seconds for path, seconds in jobs.items() if not path.exists()]
    hours = (pace * sum(part) / 3600 for part in (jobs.values(), left))
    row: Row = {"stage": stage, "runs": runs * len(jobs), "left": runs * len(left), "steps": steps}
    return row | dict(zip(("hours", "hours_left"), hours, strict=True))
