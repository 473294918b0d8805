"""A whole study: shared data first, then every cell without a result, then rows of all results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from draftgauge.core.config import to_mapping
from draftgauge.core.errors import DraftgaugeError, warn
from draftgauge.core.executor import Outcome, check_executor, execute
from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.parts import WorkersSpec
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import first_per_task, for_judging, learned_from, read_prompts
from draftgauge.core.provenance import timestamp
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import EvaluationPlan, evaluate_drafter
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.building import count_parameters, matched_widths
from draftgauge.drafters.reuse.config import ReuseConfig, reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import load_drafter, read_description, save_drafter, target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.device import release_unused, torch_threads
from draftgauge.models.loading import load_tokenizer
from draftgauge.models.tokenizer import end_tokens
from draftgauge.studies.kvshot.cells import (
    ANSWERS_NAME,
    CURVE_FOLDER,
    DRAFTER_FOLDER,
    EQUAL_PARAMETERS,
    ERROR_NAME,
    KEPT,
    RESULT_NAME,
    TEXTS_NAME,
    VALIDATION_NAME,
    Cell,
    Study,
    Variant,
    cell_folder,
    cell_name,
    make_cells,
)
from draftgauge.studies.kvshot.results import Row, read_result, study_rows, tuned_rows
from draftgauge.studies.kvshot.tuning import Tuned, TuneJob, distinct, make_texts, read_texts, tuning_path
from draftgauge.training.reuse.data import answers_of, load_target, source_of
from draftgauge.training.reuse.estimate import estimate_for
from draftgauge.training.reuse.prepare import network_of, target_config
from draftgauge.training.reuse.steps import State
from draftgauge.training.reuse.tracking import read_history
from draftgauge.training.reuse.train import fill_cache, train_drafter

TRAINED = ("steps", "tokens", "seconds", "tokens_per_second", "loss")


@dataclass(frozen=True)
class CellJob:
    """A cell as the executor takes it."""

    cell: Cell

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def after(self) -> str | None:
        return self.cell.after

    def run(self, progress: Progress) -> None:
        """Train, evaluate, and leave the result in the cell's folder.

        An interrupted training resumes from its checkpoint, a finished one is not repeated.
        """
        with torch_threads(self.cell.request.threads):
            self._run(progress)

    def _run(self, progress: Progress) -> None:
        cell, request = self.cell, self.cell.request
        require_writable(cell.folder)

        def report(what: str, done: int, total: int) -> None:
            progress(f"{cell.name}: {what}", done, total)

        out = cell.folder / DRAFTER_FOLDER
        trained, began = train_drafter(request, out, report, watch=self._keep), time.monotonic()
        target = load_target(request)
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        net = load_drafter(out, target)
        texts = read_texts(cell.study / TEXTS_NAME)
        plan = EvaluationPlan(
            depths=cell.depths,
            settings=DecodingSettings(cell.evaluation.max_new_tokens, end_tokens=end_tokens(target, tokenizer)),
            live=cell.evaluation.live_prompts,
            tree=cell.evaluation.tree_prompts,
            latency=cell.evaluation.latency_prompts,
        )
        evaluation = evaluate_drafter(net, target, texts, plan, report)
        probed = texts[: cell.evaluation.bottleneck_prompts]
        limits = measure_bottlenecks(net, target.module, probed, cell.depths, read_history(out), report)
        content = {
            "identity": cell.digest(),
            "created": timestamp(),
            "device": str(target.spec.device),
            "settings": cell.settings(),
            "training": {key: getattr(trained, key) for key in TRAINED},
            "seconds": trained.seconds + time.monotonic() - began,
            "evaluation": to_mapping(evaluation),
            "bottlenecks": to_mapping(limits),
            "curve": self._curve(target, texts[: cell.evaluation.curve_prompts], plan),
        }
        KEPT.write(cell.folder / RESULT_NAME, content)
        shutil.rmtree(cell.folder / CURVE_FOLDER, ignore_errors=True)

    def _keep(self, state: State, net: ReuseNet) -> None:
        if self.cell.evaluation.curve_prompts:
            so_far = {"tokens": state.tokens, "seconds": state.seconds}
            save_drafter(self.cell.folder / CURVE_FOLDER / f"{state.step:07d}", net, so_far)

    def _curve(self, target: CachedModel, texts: Sequence[HeldOutText], plan: EvaluationPlan) -> list[dict[str, Any]]:
        """What every checkpoint of the training reached, in order."""
        forced = replace(plan, live=0, tree=0, latency=0)
        points = []
        for folder in sorted((self.cell.folder / CURVE_FOLDER).glob("*")):
            found = to_mapping(evaluate_drafter(load_drafter(folder, target), target, texts, forced))
            counts = {key: found[key] for key in ("positions", "agreed", "accepted")}
            points.append(dict(read_description(folder)["extra"]) | counts)
        return points


@dataclass(frozen=True)
class StudyOutcome:
    """Rows of every finished cell, the errors of failed ones by name, and how many cells are left."""

    rows: list[Row]
    failures: dict[str, str]
    left: int = 0


def run_study(
    study: Study,
    folder: Path,
    prompts: Path,
    validation: Path | None = None,
    workers: WorkersSpec | None = None,
    progress: Progress = silent,
) -> StudyOutcome:
    """Run a study, or what is left of it.

    Args:
        folder: of the study; run again with the same folder to resume. On several machines, one that all of them see.
        prompts: file of the held-out prompts.
        validation: file of the prompts that every row is tuned on, where the study tunes.
        workers: where cells run; by default in this process.
    """
    workers = workers or WorkersSpec()
    check_executor(workers.executor)
    source_of(study.request)
    folder = Path(os.path.realpath(folder))  # cells may run in processes that started elsewhere
    require_writable(folder)
    if workers.executor == "ray":
        study = replace(study, request=replace(study.request, threads=workers.cpus))
    judged = first_per_task(for_judging(read_prompts(prompts)), study.evaluation.per_task)
    if learned_from(study.request.prompts, prompts, {prompt.index for prompt in judged}):
        warn(f"drafters are trained on prompts of {prompts} that they are judged on")

    # Texts to measure on, answers to learn from and their features, where they are missing.
    request, target = study.request, load_target(study.request)
    work = _Work(study, folder, target)
    tokenizer = load_tokenizer(request.target, request.trust_remote_code)
    settings = DecodingSettings(study.evaluation.max_new_tokens, end_tokens=end_tokens(target, tokenizer))
    files = [(TEXTS_NAME, prompts, study.evaluation.per_task)]
    if study.tuning is not None:
        assert validation is not None, "a study that tunes has validation prompts"
        files.append((VALIDATION_NAME, validation, study.tuning.per_task))
    for name, path, per_task in files:
        make_texts(folder / name, path, per_task, target, tokenizer, settings, progress)
    answers = answers_of(request, folder / ANSWERS_NAME, target, progress)
    trials = [job for job in work.tuning_jobs() if job.read() is None]
    learning = [job.request() for job in trials] or [cell.request for cell in work.waiting()]
    if learning:
        fill_cache(learning[0], folder / DRAFTER_FOLDER, target, answers, progress)
    del target  # every job loads its own
    release_unused()

    run = partial(execute, executor=workers.executor, cpus=workers.cpus, gpus=workers.gpus, progress=progress)
    failed = [outcome for outcome in run(trials, finished=lambda outcome: None) if outcome.error]
    if failed:
        raise DraftgaugeError(f"the tuning could not be finished; {failed[0].job}: {failed[0].message}")
    cells, waiting = work.cells(), work.waiting()
    done = len(cells) - len(waiting)
    progress("cells", done, len(cells))

    def finished(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        error = cell_folder(folder, outcome.job) / ERROR_NAME
        require_writable(error.parent)
        if outcome.error:
            atomic_write_text(error, outcome.error + "\n")
        else:
            error.unlink(missing_ok=True)
        progress("cells", done, len(cells))

    outcomes = run([CellJob(cell) for cell in waiting], finished=finished)
    failures = {outcome.job: outcome.message for outcome in outcomes if outcome.error}
    found = work.outcome(failures)
    if found.left == len(cells):
        name, message = next(iter(failures.items()))
        where = cell_folder(folder, name) / ERROR_NAME
        raise DraftgaugeError(f"no cell of the study could be finished; {name}: {message} (see {where})")
    return found


def study_so_far(study: Study, folder: Path) -> StudyOutcome:
    work = _Work(study, Path(os.path.realpath(folder)), load_target(study.request))
    found = work.outcome({})
    if found.left == len(work.cells()):
        raise DraftgaugeError(f"none of the {found.left} cells of the study in {folder} is finished")
    return found


class _Work:
    """The jobs of a study, and what is kept of them in its folder."""

    def __init__(self, study: Study, folder: Path, target: CachedModel) -> None:
        self.study, self.folder = study, folder
        self.fingerprint = target_fingerprint(target.module)
        configs = choose_configs(study, target.module.config)
        self.shapes = {one: (config.intermediate_size, count_parameters(config)) for one, config in configs.items()}

    def tuning_jobs(self) -> list[TuneJob]:
        """One for every row that is tuned itself; none where the study does not tune."""
        if self.study.tuning is None:
            return []
        base = self.study.shared_request(self.folder)
        jobs = []
        for variant in distinct(self.study.variants):
            width = next(self.shapes[one][0] for one in self.study.variants if one.tuned_as == variant)
            request = variant.request(base, width)
            jobs.append(TuneJob(variant, request, self.study.tuning, self.folder, self.fingerprint))
        return jobs

    def tuned(self) -> dict[Variant, Tuned]:
        return {job.variant: tuned for job in self.tuning_jobs() if (tuned := job.read()) is not None}

    def cells(self) -> list[Cell]:
        settings = {variant: asdict(tuned.chosen) for variant, tuned in self.tuned().items()}
        return make_cells(self.study, self.shapes, self.fingerprint, self.folder, settings)

    def waiting(self) -> list[Cell]:
        return [cell for cell in self.cells() if read_result(cell) is None]

    def outcome(self, failures: dict[str, str]) -> StudyOutcome:
        cells = self.cells()
        results = [result for cell in cells if (result := read_result(cell)) is not None]
        return StudyOutcome([*study_rows(results), *tuned_rows(self.tuned())], failures, len(cells) - len(results))


def choose_configs(study: Study, target_config: Any) -> Mapping[Variant, ReuseConfig]:
    """The network of every variant, with equal parameters or with an MLP as wide as the target's."""
    shapes = {variant: network_of(variant.request(study.request)) for variant in study.variants}
    matched = [variant for variant in study.variants if variant.capacity == EQUAL_PARAMETERS]
    configs = dict(zip(matched, matched_widths(target_config, [shapes[one] for one in matched]), strict=True))
    return {one: configs[one] if one in configs else reuse_config(target_config, **shapes[one]) for one in shapes}


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
