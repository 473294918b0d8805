"""``draftgauge bench``: policies and baselines live, interleaved prompt by prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import friendly_errors, progress, save_json, show_table


def bench(
    folder: Annotated[Path, typer.Argument(help="A recorded run (its manifest names the pair and the prompts), or a folder of runs.")],
    policy: o.Policy = None,
    baselines: Annotated[bool, typer.Option(help="Also run transformers' generate(), plain and assisted.")] = True,
    rounds: Annotated[int, typer.Option(help="How often every prompt is decoded by every policy.")] = 3,
    limit: o.Limit = None,
    per_task: o.PerTask = None,
    tasks: o.Tasks = None,
    split: o.Split = None,
    device: o.Device = None,
    engine: o.Engine = "auto",
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Decode live with every policy, beside plain decoding and transformers, in one process, interleaved prompt by prompt."""
    from draftgauge.api.bench import bench_run

    with friendly_errors("Nothing was written."):
        with progress() as advance:
            rows = bench_run(
                folder,
                policy,
                baselines=baselines,
                rounds=rounds,
                limit=limit,
                per_task=per_task,
                tasks=o.listed(tasks) or None,
                split=split,
                device=device,
                engine=engine,
                trust_remote_code=trust_remote_code,
                progress=advance,
            )
        columns = {
            "compression": "target",
            "policy": "policy",
            "tokens_per_step": "tokens/step",
            "tokens_per_second": "tokens/s",
            "tokens_per_second_low": "95% from",
            "tokens_per_second_high": "to",
            "ratio_to_plain": "x plain",
            "ratio_to_best_transformers": "x best transformers",
            "mismatches": "mismatches",
        }
        show_table("All tasks together, live", (row for row in rows if row["task"] == "all"), columns)
        save_json(json, rows)
