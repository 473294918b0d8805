"""One self-contained HTML file about recorded runs: which draft length to use, what it brings, and why."""

from draftgauge.reporting.collect import collect
from draftgauge.reporting.data import ReportData
from draftgauge.reporting.page import build_report, render

__all__ = ["ReportData", "build_report", "collect", "render"]
