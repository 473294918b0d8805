"""``draftgauge profile``: record a pair's trace and cost curve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import console, friendly_errors, progress, save_json, show_table


def profile(
    out: Annotated[Path, typer.Option(help="Folder for the trace; run again with the same folder to resume.")],
    target: o.Target = "reference",
    draft: o.Draft = "reference",
    drafter: o.DrafterKind = "language_model",
    compression: o.Compression = "none",
    prompts: o.Prompts = None,
    limit: o.Limit = None,
    per_task: o.PerTask = None,
    tasks: o.Tasks = None,
    split: o.Split = None,
    max_new_tokens: o.MaxNewTokens = 128,
    gamma_max: o.GammaMax = 16,
    long_prompts: Annotated[
        str, typer.Option(help="Prompts longer than the models take: error, truncate (keep the end) or skip.")
    ] = "error",
    device: o.Device = None,
    engine: o.Engine = "auto",
    seed: o.Seed = 0,
    temperature: Annotated[
        float, typer.Option(help="0 records greedy output; above 0 output and drafts are drawn.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the smallest set with this much probability; 1 is off.")
    ] = 1.0,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Record, for every position of the target's output, what would be drafted from there, and measure what a step costs."""
    from draftgauge.api.profile import profile as run_profile
    from draftgauge.api.summary import profile_rows

    with friendly_errors("Everything finished so far is kept: run the same command again to go on."):
        with progress() as advance:
            folders = run_profile(
                target=target,
                draft=draft,
                prompts=prompts,
                out=out,
                compression=o.listed(compression),
                gamma_max=gamma_max,
                max_new_tokens=max_new_tokens,
                limit=limit,
                per_task=per_task,
                tasks=o.listed(tasks) or None,
                split=split,
                drafter=drafter,
                long_prompts=long_prompts,
                device=device,
                engine=engine,
                seed=seed,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                trust_remote_code=trust_remote_code,
                progress=advance,
            )
        rows = profile_rows(folders)
        columns = {
            "compression": "target",
            "task": "task",
            "prompts": "prompts",
            "tokens": "tokens",
            "mean_accepted": "accepted of gamma_max",
            "first_accepted": "first accepted",
            "best_fixed_gamma": "best gamma",
            "near_best_from": "within 2% from",
            "near_best_to": "to",
            "cost_ratio": "draft / verify cost",
        }
        show_table("Recorded", rows, columns)
        save_json(json, rows)
        console.print(f"Next: draftgauge replay {out}   or   draftgauge report {out}", highlight=False)
