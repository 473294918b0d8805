"""The keys of rows that verbs return, against the table in docs/python.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
FORMER = {"speedup", "ratio", "live_ratio", "setting", "advised", "rate", "acceptance"}


def check_keys(rows: Iterable[Mapping[str, Any]], *verb: str) -> None:
    """Rows have the documented keys that are named, no former name of one, whole intervals, and depths from 1."""
    rows = list(rows)
    documented = set(re.findall(r"`(\w+)`", PAGE.read_text().partition("| key |")[2].partition("\n\n")[0]))
    keys = {key for row in rows for key in row}
    assert set(verb) <= documented & keys
    assert not keys & FORMER
    for end in ("_low", "_high"):
        assert {key.removesuffix(end) for key in keys if key.endswith(end)} <= keys
    depths = {row["depth"] for row in rows if row.get("depth") is not None}
    assert not depths or min(depths) == 1
