"""The HTML report of recorded runs."""

from __future__ import annotations

from pathlib import Path

from draftgauge.api.requests import ReportRequest
from draftgauge.api.runs import select_runs
from draftgauge.api.verb import verb
from draftgauge.core.files import require_writable_file
from draftgauge.core.provenance import read_measurement
from draftgauge.policies.fitted import FITTED_SUFFIX, is_fitted
from draftgauge.reporting.page import build_report

REPORT_NAME = "report.html"


@verb(ReportRequest)
def report(request: ReportRequest) -> Path:
    """Write one self-contained HTML file about the runs at a place, and return its path.

    Fitted policies that lie in the folder are judged too, where there are prompts enough. Without any policy the
    standard ones are, where the prompts name training and test ones.

    Raises:
        TraceError: if the folder holds no complete trace, or too few prompts to judge policies on.
        DraftgaugeError: if a bench file cannot be read, or a policy is unknown or was fitted for other drafts.
    """
    rows = [dict(row) for path in request.bench for row in read_measurement(path).rows]
    runs = [run for run, _ in select_runs(request.folder)]
    folders = (request.folder, *runs)
    fitted = sorted({str(path) for folder in folders for path in folder.glob(f"*{FITTED_SUFFIX}") if is_fitted(path)})
    out = request.out or request.folder / REPORT_NAME
    require_writable_file(out)
    return build_report(runs, out, rows or None, request.title, policies=request.policies or None, fitted=fitted)
