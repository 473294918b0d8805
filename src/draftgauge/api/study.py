"""The two papers as studies: KVShot's drafters trained and compared, SpecKV's tables from its author's records."""

from __future__ import annotations

from typing import Any

from draftgauge.api.rank import record_alike, same_outputs
from draftgauge.api.report import REPORT_NAME
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text, require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.core.provenance import command_line, environment
from draftgauge.core.verb import verb
from draftgauge.pair.prompts import prompt_file
from draftgauge.requests import (
    CostSpec,
    DraftSpec,
    OutputSpec,
    PromptSpec,
    RankRequest,
    StudyKvshotRequest,
    StudySpeckvRequest,
)
from draftgauge.studies.kvshot.decay import DEPTHS, MAX_NEW_TOKENS, decay_rows
from draftgauge.studies.kvshot.page import render_kvshot
from draftgauge.studies.kvshot.plan import plan_study
from draftgauge.studies.kvshot.presets import make_study
from draftgauge.studies.kvshot.run import StudyOutcome, run_study, study_so_far
from draftgauge.studies.speckv.importer import read_records
from draftgauge.studies.speckv.page import render_speckv
from draftgauge.studies.speckv.study import run_study as run_speckv
from draftgauge.training.reuse.request import TrainingSpec


@verb(StudyKvshotRequest)
def study_kvshot(request: StudyKvshotRequest, *, progress: Progress = silent) -> StudyOutcome:
    """Train every design several times under one matched training, measure all alike, answer the paper's predictions.

    The folder receives a sub-folder for each cell (one design, one seed), the data that they share, and
    ``report.html``. The same call goes on where it was stopped. On a cluster the folder is one that all machines see.

    Returns:
        Rows of all finished cells, see :func:`draftgauge.studies.kvshot.results.study_rows`, the errors of those that
        failed, and how many are left. Of a plan, see :func:`draftgauge.studies.kvshot.plan.plan_study`; nothing is
        written.
    """
    out = request.out
    if request.decay:
        return StudyOutcome(_decay(request, progress), {})
    training = TrainingSpec(
        target=request.teacher.target, prompts=request.teacher.prompts, device=request.machine.device
    )
    study = make_study(request.preset, training, request.held_out)
    if request.seeds is not None:
        study = study.with_seeds(request.seeds)
    if request.plan:
        return StudyOutcome(plan_study(study, out), {})
    if request.so_far:
        return _reported(request, study_so_far(study, out))
    require_writable(out)
    prompts = prompt_file(study.evaluation.prompts)
    validation = None if study.tuning is None else prompt_file(study.tuning.prompts)
    outcome = run_study(study, out, prompts, validation, request.workers, progress)
    return _reported(request, outcome)


def _decay(request: StudyKvshotRequest, progress: Progress) -> list[dict[str, Any]]:
    """Rows of :func:`~draftgauge.studies.kvshot.decay.decay_rows`; each drafter has a run below the folder."""
    asked = RankRequest(
        drafters=request.decay,
        target=request.teacher.target,
        out=request.out,
        prompts=PromptSpec(prompts=request.held_out, limit=request.decay_prompts, long_prompts="truncate"),
        output=OutputSpec(max_new_tokens=MAX_NEW_TOKENS),
        drafts=DraftSpec(gamma_max=DEPTHS),
        costs=CostSpec(cost_seconds=0),
        machine=request.machine,
    )
    _, runs, failed = record_alike(asked, progress)
    if failed:
        raise DraftgaugeError(f"{next(iter(failed))}: {next(iter(failed.values()))}")
    return decay_rows(same_outputs(runs))


def _reported(request: StudyKvshotRequest, outcome: StudyOutcome) -> StudyOutcome:
    provenance: dict[str, Any] = {
        "command": command_line(),
        "preset": request.preset,
        "target": request.teacher.target,
        "cells_left": outcome.left or None,
    } | environment()
    atomic_write_text(request.out / REPORT_NAME, render_kvshot(outcome.rows, outcome.failures, provenance))
    return outcome


@verb(StudySpeckvRequest)
def study_speckv(request: StudySpeckvRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """The tables of SpecKV (arXiv 2605.02888) from its author's records, and beside them what those records say.

    Returns:
        Rows with ``table``: "policies", "breakdown", "predictors", "improvement", "choices" and "correlations" as
        published; "honest" is what the records say, see :func:`draftgauge.studies.speckv.study.run_study`.

    Raises:
        DraftgaugeError: naming file and line, if a table is not the published one or like it; or if ``out`` cannot be
            written to. Nothing is written then.
    """
    records = read_records(request.steps, request.experiments)
    if request.out is not None:
        require_writable(request.out)
    rows = run_speckv(records, progress)
    if request.out is not None:
        atomic_write_text(request.out / REPORT_NAME, render_speckv(rows))
    return rows
