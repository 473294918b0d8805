"""A whole study: shared data first, then every cell without a result, then rows of all results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.executor import Job, Outcome, check_executor, execute
from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.parts import WorkersSpec
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import learned_from, mixed_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.reuse import ReuseConfig, count_parameters, matched_widths, reuse_config, target_fingerprint
from draftgauge.drafters.reuse.config import NORMS
from draftgauge.models.loading import end_tokens, load_tokenizer
from draftgauge.studies.kvshot.ablation import AblationJob, ablation_jobs, ablation_rows, read_ablation
from draftgauge.studies.kvshot.cells import (
    ANSWERS_NAME,
    DRAFTER_FOLDER,
    EQUAL_PARAMETERS,
    ERROR_NAME,
    TEXTS_NAME,
    VALIDATION_NAME,
    Cell,
    Study,
    Variant,
    cell_folder,
    check_study,
    make_cells,
    shared_request,
)
from draftgauge.studies.kvshot.held_out import make_texts
from draftgauge.studies.kvshot.results import CellResult, Row, read_result, study_rows, tuned_rows
from draftgauge.studies.kvshot.tune import TuneJob
from draftgauge.studies.kvshot.tuning import Tuned, distinct, read_tuned, tuned_as
from draftgauge.studies.kvshot.work import CellJob
from draftgauge.training.reuse.data import answers_of, load_target, source_of
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import fill_cache


@dataclass(frozen=True)
class StudyOutcome:
    """Rows of every finished cell, what went wrong in the others, by name, and how many cells are left."""

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
        study: its configuration, see :mod:`draftgauge.studies.kvshot.presets`.
        folder: of the study; the same folder goes on where it was stopped. On several machines, one that all of them
            see.
        prompts: file of the held-out prompts.
        validation: file of the prompts that every row is tuned on, where the study tunes.
        workers: where cells run; by default in this process.
        progress: told (what, done, total).

    Raises:
        DraftgaugeError: if the folder holds another study, nothing could be finished, or an argument cannot be.
        MissingLibraryError: if Ray is asked for and not installed.
    """
    workers = workers or WorkersSpec()
    executor, cpus, gpus = workers.executor, workers.cpus, workers.gpus
    check_study(study.variants)
    check_executor(executor)
    source_of(study.request)
    folder = Path(os.path.realpath(folder))  # cells may run in processes that started elsewhere
    require_writable(folder)
    if executor == "ray":
        study = replace(study, request=replace(study.request, threads=cpus))
    judged = {prompt.index for prompt in mixed_prompts(prompts, study.evaluation.per_task)}
    if learned_from(study.request.prompts, prompts, judged):
        warnings.warn(f"drafters are trained on prompts of {prompts} that they are judged on", stacklevel=2)
    rows = _Rows(study, folder)
    fill = rows.prepare(prompts, validation, progress)
    run = partial(execute, executor=executor, finished=lambda outcome: None, cpus=cpus, gpus=gpus, progress=progress)
    tuned = rows.tune(run, fill)
    cells = rows.cells(tuned)
    waiting = [cell for cell in cells if read_result(cell) is None]
    if waiting:
        fill(waiting[0].request)
    done = len(cells) - len(waiting)
    progress("cells", done, len(cells))

    def finished(outcome: Outcome) -> None:
        nonlocal done
        done += 1
        _note(cell_folder(folder, outcome.job), outcome)
        progress("cells", done, len(cells))

    outcomes = run([CellJob(cell) for cell in waiting], finished=finished)
    outcomes_of_it = rows.ablate(run)
    failures = {outcome.job: outcome.message for outcome in (*outcomes, *outcomes_of_it) if outcome.error}
    results = [result for cell in cells if (result := read_result(cell)) is not None]
    if not results:
        name, message = next(iter(failures.items()))
        raise DraftgaugeError(
            f"no cell of the study could be finished; {name}: {message} (see {cell_folder(folder, name) / ERROR_NAME})"
        )
    return StudyOutcome(rows.all_rows(results, tuned), failures, len(cells) - len(results))


def study_so_far(study: Study, folder: Path) -> StudyOutcome:
    """What is finished of a study that was stopped or is still running; nothing is trained, and nothing written.

    Args:
        study: its configuration.
        folder: of the study.

    Raises:
        DraftgaugeError: if no cell is finished, or the folder holds another study.
    """
    check_study(study.variants)
    rows = _Rows(study, Path(os.path.realpath(folder)))
    tuned = rows.tuned()
    cells = rows.cells(tuned)
    results = [result for cell in cells if (result := read_result(cell)) is not None]
    if not results:
        raise DraftgaugeError(f"none of the {len(cells)} cells of the study in {folder} is finished")
    return StudyOutcome(rows.all_rows(results, tuned), {}, len(cells) - len(results))


def _note(folder: Path, outcome: Outcome) -> None:
    """Keep the whole error of a failed cell beside it; a cell that went well has none."""
    require_writable(folder)
    if outcome.error:
        atomic_write_text(folder / ERROR_NAME, outcome.error + "\n")
    else:
        (folder / ERROR_NAME).unlink(missing_ok=True)


class _Rows:
    """The rows of a study, their widths, and what is kept of them in its folder."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self.target = load_target(study.request)
        self.fingerprint = target_fingerprint(self.target.module)
        configs = choose_configs(study, self.target.module.config)
        self.widths = {variant: config.intermediate_size for variant, config in configs.items()}
        self.parameters = {variant: count_parameters(config) for variant, config in configs.items()}

    def prepare(self, prompts: Path, validation: Path | None, progress: Progress) -> Callable[[TrainingSpec], None]:
        """Make the texts to measure on and the answers to learn from, where they are not there.

        Returns:
            What computes the target's features that a training reads, where they are not there.
        """
        study, request = self.study, self.study.request
        tokenizer = load_tokenizer(request.target, request.trust_remote_code)
        settings = DecodingSettings(study.evaluation.max_new_tokens, end_tokens=end_tokens(self.target, tokenizer))
        files = [(TEXTS_NAME, prompts, study.evaluation.per_task)]
        if study.tuning is not None:
            assert validation is not None, "a study that tunes has validation prompts"
            files.append((VALIDATION_NAME, validation, study.tuning.per_task))
        for name, path, per_task in files:
            make_texts(self.folder / name, path, per_task, self.target, tokenizer, settings, progress)
        answers = answers_of(request, self.folder / ANSWERS_NAME, self.target, progress)
        out = self.folder / DRAFTER_FOLDER
        return lambda training: fill_cache(training, out, self.target, answers, progress)

    def ablate(self, run: Callable[[Sequence[Job]], list[Outcome]]) -> list[Outcome]:
        """Run what is left of the ablation, after the cells; tells how the jobs ended."""
        return run([job for job in self._ablation() if read_ablation(job) is None])

    def all_rows(self, results: Sequence[CellResult], tuned: Mapping[Variant, Tuned]) -> list[Row]:
        """Rows of finished cells, of the tuning, and of all that is there of the ablation."""
        return [*study_rows(results), *tuned_rows(tuned), *ablation_rows(self._ablation())]

    def _ablation(self) -> list[AblationJob]:
        if self.study.ablation is None:
            return []
        assert self.study.tuning is not None, "an ablation is judged on the prompts of the tuning"
        base = shared_request(self.study, self.folder)
        layers = self.target.module.config.get_text_config().num_hidden_layers
        return ablation_jobs(self.study.ablation, base, self.folder, self.fingerprint, layers)

    def tune(
        self, run: Callable[[Sequence[Job]], list[Outcome]], fill: Callable[[TrainingSpec], None]
    ) -> dict[Variant, Tuned]:
        """Tune what is not yet tuned; nothing where the study does not tune.

        Args:
            run: runs the jobs.
            fill: computes the features that they read.

        Raises:
            DraftgaugeError: if the trials of a row failed.
        """
        waiting = [job for job in self._tuning() if read_tuned(job.path, job.identity()) is None]
        if waiting:
            fill(waiting[0].request())
        failed = [outcome for outcome in run(waiting) if outcome.error]
        if failed:
            raise DraftgaugeError(f"the tuning could not be finished; {failed[0].job}: {failed[0].message}")
        return self.tuned()

    def tuned(self) -> dict[Variant, Tuned]:
        """What was found for the rows that are tuned."""
        read = {job.variant: read_tuned(job.path, job.identity()) for job in self._tuning()}
        return {variant: tuned for variant, tuned in read.items() if tuned is not None}

    def _tuning(self) -> list[TuneJob]:
        if self.study.tuning is None:
            return []
        base = shared_request(self.study, self.folder)
        jobs = []
        for variant in distinct(self.study.variants):
            width = next(self.widths[one] for one in self.study.variants if tuned_as(one) == variant)
            request = variant.request(base, width, 0, None)
            jobs.append(TuneJob(variant, request, self.study.tuning, self.folder, self.fingerprint))
        return jobs

    def cells(self, tuned: Mapping[Variant, Tuned]) -> list[Cell]:
        """All cells, each with what was tuned for its row."""

        def settle(variant: Variant, request: TrainingSpec) -> TrainingSpec:
            search = tuned.get(tuned_as(variant))
            return request if search is None else search.chosen.request(request)

        return make_cells(self.study, self.widths, self.parameters, self.fingerprint, self.folder, settle)


def choose_configs(study: Study, target_config: Any) -> dict[Variant, ReuseConfig]:
    """What every variant is made of: at equal parameters where it is to be so, else with an MLP as wide as the
    target's.
    """
    matched = [variant for variant in study.variants if variant.capacity == EQUAL_PARAMETERS]
    configs = dict(
        zip(matched, matched_widths(target_config, [_shape(variant, study) for variant in matched]), strict=True)
    )
    return {v: configs[v] if v in configs else reuse_config(target_config, **_shape(v, study)) for v in study.variants}


def _shape(variant: Variant, study: Study) -> dict[str, Any]:
    request = study.request
    return {
        "design": variant.design,
        "layers": variant.layers,
        "injection": variant.injection or request.injection,
        "taps": request.taps,
        "draft_vocabulary": request.draft_vocabulary,
    } | {name: getattr(request, name) for name in NORMS}
