"""``draftgauge datastore``: earlier outputs that tokens may be looked up in."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import say
from draftgauge.requests import DatastoreBuildRequest


def build(request: DatastoreBuildRequest) -> list[dict[str, Any]]:
    from draftgauge.api.datastore import build_datastore

    rows = build_datastore(request)
    (row,) = rows
    say(f"{request.out}: {row['outputs']} outputs of {row['tokens']} tokens, at most {row['capacity']}")
    if row["left_out"]:
        say(f"{row['left_out']} outputs, the oldest, did not fit: raise --capacity to keep them")
    return rows
