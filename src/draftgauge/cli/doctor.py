"""``draftgauge doctor``: why a drafter is slow or hardly accepted."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import DoctorRequest
from draftgauge.cli.console import IncompleteError, console, progress, warn

SHOWN = {"wrong": "WRONG", "suspect": "perhaps"}


def doctor(request: DoctorRequest) -> list[dict[str, Any]]:
    from draftgauge.api.doctor import doctor as run

    with progress() as advance:
        rows = run(request, progress=advance, on_warning=warn)
    for row in rows:
        if row["status"] in SHOWN:
            lines = (f"{SHOWN[row['status']]}  {row['check']}: {row['what']}", f"  seen: {row['evidence']}")
            console.print(
                "\n".join((*lines, f"  do:   {row['remedy']}")), markup=False, highlight=False, soft_wrap=True
            )
        elif row["status"] == "well":
            console.print(f"well   {row['check']}: {row['evidence']}", markup=False, highlight=False, soft_wrap=True)
    if unknown := [row["check"] for row in rows if row["status"] == "unknown"]:
        console.print(f"not checked, for lack of evidence: {', '.join(unknown)}", highlight=False, soft_wrap=True)
    if any(row["status"] == "wrong" for row in rows):
        raise IncompleteError(rows)
    return rows
