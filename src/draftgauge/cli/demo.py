"""``draftgauge demo``: the whole path on the bundled pair, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import console, friendly_errors, progress, save_json, show_table


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    compression: o.Compression = "none,int8,nf4",
    per_task: Annotated[int, typer.Option(help="Prompts of each task.")] = 4,
    max_new_tokens: o.MaxNewTokens = 128,
    rounds: Annotated[int, typer.Option(help="Rounds of the live bench.")] = 1,
    json: o.Json = None,
) -> None:
    """Profile, replay, bench and report the bundled pair at several compressions."""
    from draftgauge.api.demo import demo as run_demo

    with friendly_errors("Everything finished so far is kept: run the same command again to go on."):
        started = time.monotonic()
        with progress() as advance:
            report, rows = run_demo(
                out,
                compressions=o.listed(compression),
                per_task=per_task,
                max_new_tokens=max_new_tokens,
                rounds=rounds,
                progress=advance,
            )
        columns = {
            "compression": "target",
            "policy": "policy",
            "tokens_per_step": "tokens/step",
            "modelled_tokens_per_second": "modelled tokens/s",
            "live_tokens_per_second": "live tokens/s",
            "ratio_to_plain": "x plain",
            "mismatches": "mismatches",
        }
        show_table("All tasks together", (row for row in rows if row["task"] == "all" and "policy" in row), columns)
        summary = {
            "compression": "target",
            "task": "task",
            "best_fixed_gamma": "best gamma",
            "near_best_from": "within 2% from",
            "near_best_to": "to",
            "cost_ratio": "draft / verify cost",
            "hindsight_gain": "hindsight over best",
        }
        show_table("Which length to use", (row for row in rows if "best_fixed_gamma" in row), summary)
        save_json(json, rows)
        console.print(f"{time.monotonic() - started:.0f} s. Open {report} in a browser.", highlight=False)
