"""``draftgauge fit``: learn a policy from a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import console, friendly_errors, save_json, show_table


def fit(
    folder: Annotated[Path, typer.Argument(help="A recorded run, or a folder of runs, with training prompts.")],
    out: Annotated[Path, typer.Option(help="File to write; give it to --policy of replay and bench.")],
    policy: Annotated[str, typer.Option("--policy", "-p", help="stopping, specdec++ or speckv.")] = "stopping",
    tasks: o.Tasks = None,
    compression: Annotated[
        str | None, typer.Option(help="Learn from the runs of these compressions only, separated by commas.")
    ] = None,
    horizon: Annotated[int, typer.Option(help="stopping: tokens to look ahead; 1 for the one-step rule.")] = 8,
    online: Annotated[bool, typer.Option("--online", help="stopping: go on calibrating while running.")] = False,
    seed: o.Seed = 0,
    json: o.Json = None,
) -> None:
    """Fit a policy on the training prompts of a trace; what it gains on the validation prompts is shown."""
    from draftgauge.api.fit import fit as run_fit

    with friendly_errors("Nothing was written."):
        rows = run_fit(
            folder,
            policy,
            out,
            tasks=o.listed(tasks) or None,
            compression=o.listed(compression) or None,
            horizon=horizon,
            online=online,
            seed=seed,
        )
        columns = {
            "compression": "target",
            "trained_prompts": "fitted on prompts",
            "prompts": "judged on prompts",
            "tokens_per_step": "tokens/step",
            "gain": "gain over best fixed",
            "gain_low": "95% from",
            "gain_high": "to",
            "captured": "captured",
        }
        show_table(f"{policy} on the validation prompts", rows, columns)
        save_json(json, rows)
        console.print(f"wrote {out}\nNext: draftgauge replay {folder} --policy {out}", highlight=False)
