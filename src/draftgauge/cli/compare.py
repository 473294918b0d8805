"""``draftgauge compare``: recorded runs side by side in tokens a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftgauge.cli.console import say, show_table
from draftgauge.cli.rank import say_how_to_fit
from draftgauge.requests import CompareRequest

COLUMNS = {
    "setup": "setup",
    "run": "run",
    "shown": "target",
    "plain_tokens_per_second": "plain tokens/s",
    "policy": "best setting",
    "tokens_per_second": "its tokens/s [95%]",
    "ratio_to_plain": "x plain",
    "live_tokens_per_second": "live tokens/s",
    "live_policy": "live setting",
    "live_plain_tokens_per_second": "live plain tokens/s",
    "agreement": "same tokens",
    "kl": "KL to uncompressed, nats",
    "weights_mib": "weights MiB",
    "engine": "engine",
    "drafter": "drafter",
    "gain": "over the first [95%]",
}


def compare(request: CompareRequest) -> list[dict[str, Any]]:
    from draftgauge.api.compare import compare as run

    rows = run(request)
    show_compared(rows)
    return rows


def show_compared(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table of runs, which one to deploy and how."""
    shown = [dict(row) | {"shown": f"{Path(row['target']).name} {row['compression']}".rstrip()} for row in rows]
    show_table(f"{rows[0]['prompts']} prompts in every run, replayed on each run's own costs", shown, COLUMNS)
    if rows[0]["agreement_with"]:
        say(f"same tokens: the share that are those of {rows[0]['agreement_with']} after the same text")
    say(rows[0]["verdict"])
    say(rows[0]["deploy"])
    say_how_to_fit([row["policy"] for row in rows])
