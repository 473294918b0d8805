"""The HTML report of recorded runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from draftgauge.api.runs import select_runs
from draftgauge.core.provenance import read_measurement
from draftgauge.policies.fitted import FITTED_SUFFIX, FORMAT
from draftgauge.report.page import build_report


def write_report(
    folder: Path,
    out: Path,
    bench: Sequence[Path] = (),
    title: str = "How far to draft",
    policies: Sequence[str] | None = None,
) -> Path:
    """Write one self-contained HTML file about the runs at a place.

    Args:
        folder: a recorded run, or a folder of runs (one compression each).
        out: the file to write.
        bench: JSON files of ``draftgauge bench``, whose live figures are shown beside the modelled ones.
        title: heading.
        policies: specs of policies to judge on test prompts; fitted ones that lie in the folder are added. If None, the standard ones
            and those are judged where the prompts name training and test ones.

    Raises:
        TraceError: if the folder holds no complete trace, or too few prompts to judge policies on.
        DraftgaugeError: if a bench file cannot be read, or a policy is unknown or was fitted for other drafts.
    """
    rows = [dict(row) for path in bench for row in read_measurement(path).rows]
    runs = [run for run, _ in select_runs(folder)]
    fitted = sorted(
        {str(path) for place in (folder, *runs) for path in place.glob(f"*{FITTED_SUFFIX}") if _is_fitted(path)}
    )
    judged = [*(policies or ()), *fitted]
    return build_report(runs, out, rows or None, title, policies=judged or None)


def _is_fitted(path: Path) -> bool:
    """Whether a JSON file says that it is a fitted policy; measurements and cost curves lie beside them."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT
