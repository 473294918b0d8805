"""``draftgauge report``: one self-contained HTML file about recorded runs."""

from __future__ import annotations

from draftgauge.cli.console import console
from draftgauge.requests import ReportRequest


def report(request: ReportRequest) -> None:
    from draftgauge.api.report import report as run

    console.print(f"wrote {run(request)}", markup=False, highlight=False)
