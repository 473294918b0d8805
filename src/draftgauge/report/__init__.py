"""One self-contained HTML file about recorded runs: which draft length to use, what it brings, and why."""

from draftgauge.report.collect import collect
from draftgauge.report.data import ReportData
from draftgauge.report.page import build_report, render

__all__ = ["ReportData", "build_report", "collect", "render"]
