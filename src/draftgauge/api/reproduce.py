"""Published papers, from the records of their authors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftgauge.core.files import require_writable
from draftgauge.studies.speckv import read_records, run_study
from draftgauge.studies.speckv.page import write_speckv_report
from draftgauge.studies.speckv.study import Advance

REPORT_NAME = "report.html"


def reproduce_speckv(
    steps: Path,
    experiments: Path | None = None,
    *,
    out: Path | None = None,
    progress: Advance = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """The tables of SpecKV (arXiv 2605.02888) from its author's records, and beside them what those records say.

    Args:
        steps: the published table of steps, ``phase2_step_results.csv``.
        experiments: the published table of experiments, ``phase2_experiment_results.csv``; without it there is nothing about seconds.
        out: a folder that receives ``report.html``; no report if None.
        progress: told (what, done, total).

    Returns:
        Rows with ``table``: "policies", "breakdown", "predictors", "improvement", "choices", "correlations" and "importance" as
        published; "honest" is what the records say, see :func:`draftgauge.studies.speckv.run_study`.

    Raises:
        DraftgaugeError: naming file and line, if a table is not the published one or like it; or if ``out`` cannot be written to. Nothing
            is written then.
    """
    records = read_records(steps, experiments)
    if out is not None:
        require_writable(out)
    rows = run_study(records, progress)
    if out is not None:
        write_speckv_report(rows, out / REPORT_NAME)
    return rows
