"""The HTML report of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftgauge.api.runs import select_runs
from draftgauge.core.provenance import read_measurement
from draftgauge.report.page import build_report


def write_report(folder: Path, out: Path, bench: Sequence[Path] = (), title: str = "How far to draft") -> Path:
    """Write one self-contained HTML file about the runs at a place.

    Args:
        folder: a recorded run, or a folder of runs (one compression each).
        out: the file to write.
        bench: JSON files of ``draftgauge bench``, whose live figures are shown beside the modelled ones.
        title: heading.

    Raises:
        TraceError: if the folder holds no complete trace.
        DraftgaugeError: if a bench file cannot be read.
    """
    rows = [dict(row) for path in bench for row in read_measurement(path).rows]
    return build_report([run for run, _ in select_runs(folder)], out, rows or None, title)
