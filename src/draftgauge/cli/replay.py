"""``draftgauge replay``: what any policy would have done on a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import friendly_errors, save_json, show_table


def replay(
    folder: Annotated[Path, typer.Argument(help="A recorded run, or a folder of runs.")],
    policy: o.Policy = None,
    tasks: o.Tasks = None,
    split: o.Split = None,
    json: o.Json = None,
) -> None:
    """Evaluate policies exactly on a trace with its measured cost curve; no model is loaded."""
    from draftgauge.api.replay import replay_rows

    with friendly_errors():
        rows = replay_rows(folder, policy, tasks=o.listed(tasks) or None, split=split)
        columns = {
            "compression": "target",
            "policy": "policy",
            "tokens_per_step": "tokens/step",
            "tokens_per_second": "modelled tokens/s",
            "tokens_per_second_low": "95% from",
            "tokens_per_second_high": "to",
            "ratio_to_plain": "x plain",
            "gain_over_best_fixed": "over best fixed",
            "captured_share": "of the gap",
        }
        show_table("All tasks together", (row for row in rows if row["task"] == "all"), columns)
        save_json(json, rows)
