"""``draftgauge doctor``: why a drafter is slow or hardly accepted."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import IncompleteError, progress, say
from draftgauge.requests import DoctorRequest

SHOWN = {"wrong": "WRONG", "suspect": "perhaps"}


def doctor(request: DoctorRequest) -> list[dict[str, Any]]:
    from draftgauge.api.doctor import doctor as run

    with progress() as advance:
        rows = run(request, progress=advance)
    for row in rows:
        if row["status"] in SHOWN:
            say(f"{SHOWN[row['status']]}  {row['check']}: {row['what']}")
            say(f"  seen: {row['evidence']}\n  do:   {row['remedy']}")
        elif row["status"] == "well":
            say(f"well   {row['check']}: {row['evidence']}")
    if unknown := [row["check"] for row in rows if row["status"] == "unknown"]:
        say(f"not checked, for lack of evidence: {', '.join(unknown)}")
    if any(row["status"] == "wrong" for row in rows):
        raise IncompleteError(rows)
    return rows
