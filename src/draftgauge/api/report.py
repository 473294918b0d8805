"""The HTML report of recorded runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.runs import Run, fitted_here
from draftgauge.core.files import atomic_write_text, require_writable_file
from draftgauge.core.provenance import read_measurement
from draftgauge.core.verb import verb
from draftgauge.policies.spec import read_policies
from draftgauge.reporting.page import render
from draftgauge.reporting.rows import judge_run
from draftgauge.requests import ReportRequest

REPORT_NAME = "report.html"


@verb(ReportRequest)
def report(request: ReportRequest) -> Path:
    """Write one self-contained HTML file about the runs at a place, and return its path.

    The policies of every comparison, fitted ones in a run's folder and those asked for are judged as ``replay`` does.

    Raises:
        TraceError: if the folder holds no complete trace, or too few prompts to judge fitted policies on.
        DraftgaugeError: if a bench file cannot be read, or a policy is unknown or was fitted for other drafts.
    """
    live = [row for path in request.bench for row in read_measurement(path).rows]
    ranked = () if request.ranked is None else read_measurement(request.ranked).rows
    return write_report(request.folder, request.out, live, request.policies, request.split, ranked=ranked)


def write_report(
    folder: Path,
    out: Path | None = None,
    live: Sequence[Mapping[str, Any]] = (),
    policies: Sequence[str] = (),
    split: str | None = None,
    compressions: Sequence[str] | None = None,
    ranked: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """As :func:`report`; ``live`` are rows of ``bench``, ``ranked`` of ``rank``; of ``compressions`` only, if given."""
    found, out = Run.find(folder), out or folder / REPORT_NAME  # first, as what follows may make the folder
    require_writable_file(out)
    runs = []
    for run in found:
        if compressions is not None and run.manifest.target.compression not in compressions:
            continue
        named = read_policies((*run.usual_policies(), *policies), run.manifest.gamma_max)
        trace, costs = run.read()
        design = run.design(named, trace, split)
        made = {policy.text: policy.make(trace.gamma_max, costs) for policy in named}
        runs.append(judge_run(run, design, {**made, **fitted_here(named, design, costs)}, live))
    atomic_write_text(out, render(runs, ranked))
    return out
