"""The study of drafters that reuse what the target computed, from training to report."""

from __future__ import annotations

from typing import Any

from draftgauge.api.prompts import prompt_file
from draftgauge.api.requests import StudyKvshotRequest
from draftgauge.api.verb import verb
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.core.provenance import command_line, environment
from draftgauge.studies.kvshot.page import write_kvshot_report
from draftgauge.studies.kvshot.plan import plan_study
from draftgauge.studies.kvshot.presets import make_study
from draftgauge.studies.kvshot.run import StudyOutcome, run_study, study_so_far
from draftgauge.training.reuse.request import TrainingSpec

REPORT_NAME = "report.html"


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


def _reported(request: StudyKvshotRequest, outcome: StudyOutcome) -> StudyOutcome:
    """Write the report of an outcome into the study's folder."""
    provenance: dict[str, Any] = {
        "command": command_line(),
        "preset": request.preset,
        "target": request.teacher.target,
        "cells_left": outcome.left or None,
    } | environment()
    write_kvshot_report(outcome.rows, request.out / REPORT_NAME, outcome.failures, provenance)
    return outcome
