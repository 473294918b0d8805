"""Published papers, from the records of their authors."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import ReproduceSpeckvRequest
from draftgauge.api.verb import verb
from draftgauge.core.files import require_writable
from draftgauge.core.progress import Progress, silent
from draftgauge.studies.speckv.importer import read_records
from draftgauge.studies.speckv.page import write_speckv_report
from draftgauge.studies.speckv.study import run_study

REPORT_NAME = "report.html"


@verb(ReproduceSpeckvRequest)
def reproduce_speckv(request: ReproduceSpeckvRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """The tables of SpecKV (arXiv 2605.02888) from its author's records, and beside them what those records say.

    Returns:
        Rows with ``table``: "policies", "breakdown", "predictors", "improvement", "choices", "correlations" and
        "importance" as published; "honest" is what the records say, see
        :func:`draftgauge.studies.speckv.study.run_study`.

    Raises:
        DraftgaugeError: naming file and line, if a table is not the published one or like it; or if ``out`` cannot be
            written to. Nothing is written then.
    """
    records = read_records(request.steps, request.experiments)
    if request.out is not None:
        require_writable(request.out)
    rows = run_study(records, progress)
    if request.out is not None:
        write_speckv_report(rows, request.out / REPORT_NAME)
    return rows
