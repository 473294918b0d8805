"""The study of drafters that reuse what the target computed, from training to report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from draftgauge.api.runs import prompt_file
from draftgauge.core.files import require_writable
from draftgauge.core.provenance import command_line, environment
from draftgauge.studies.kvshot.page import write_kvshot_report
from draftgauge.studies.kvshot.presets import make_study
from draftgauge.studies.kvshot.run import StudyOutcome, run_study
from draftgauge.training.reuse.request import TrainingSpec

REPORT_NAME = "report.html"


def study_kvshot(
    out: Path,
    preset: str = "smoke",
    *,
    target: str = "reference",
    prompts: Path | None = None,
    held_out: str | Path | None = None,
    executor: str = "local",
    cpus: int = 1,
    gpus: float = 0,
    device: str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> StudyOutcome:
    """Train every design several times under one matched training, measure all of them alike, and answer the paper's predictions.

    The folder receives a sub-folder for each cell (one design, one seed), the data that they share, and ``report.html``. The same
    call goes on where it was stopped.

    Args:
        out: folder of the study; on a cluster, one that all machines see.
        preset: smoke (does it work), quick (the designs, three seeds), depth (quick, and deeper KV drafters) or full (every row of
            the paper's table).
        target: a folder, a model id of the hub, or ``reference``.
        prompts: prompt file that the target answers for training; generated questions for the bundled target.
        held_out: prompt file, or ``reference:SPLIT``, to measure on; the bundled test prompts if None.
        executor: ``local``, one cell after the other, or ``ray``.
        cpus, gpus: that each cell asks Ray for.
        device: to train and measure on; a GPU where there is one.
        progress: told (what, done, total).

    Returns:
        Rows of all finished cells, see :func:`draftgauge.studies.kvshot.results.study_rows`, and the errors of those that failed.

    Raises:
        DraftgaugeError: for an unknown preset or executor, a folder that holds another study, or if no cell could be finished.
        MissingLibraryError: if Ray is asked for and not installed.
    """
    study = make_study(preset, TrainingSpec(target=target, prompts=prompts, device=device), held_out)
    require_writable(out)
    found = run_study(study, out, prompt_file(study.evaluation.prompts), executor, cpus, gpus, progress)
    made: dict[str, Any] = {"command": command_line(), "preset": preset, "target": target} | environment()
    write_kvshot_report(found.rows, out / REPORT_NAME, found.failures, made)
    return found
