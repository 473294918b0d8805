"""``draftgauge bench``: policies and baselines live, interleaved prompt by prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import friendly_errors, progress, save_json, show_table
from draftgauge.core.errors import DraftgaugeError


def bench(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="A recorded run (its manifest names the pair and the prompts), or a folder of runs; else name the pair."
        ),
    ] = None,
    policy: o.Policy = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="'language_model', 'prompt_lookup' or a trained drafter's folder; of a run, in place of the recorded one."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Without a run: the target; by default a trained drafter's own, or 'reference'.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Without a run: the draft model; by default 'reference'.")] = None,
    compression: Annotated[str | None, typer.Option(help="Without a run: of the target; by default 'none'.")] = None,
    prompts: o.Prompts = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Without a run: output tokens a prompt; by default 128.")
    ] = None,
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
    from draftgauge.api.bench import bench_pair, bench_run

    with friendly_errors("Nothing was written."):
        with progress() as advance:
            common: dict[str, Any] = {
                "baselines": baselines,
                "rounds": rounds,
                "limit": limit,
                "per_task": per_task,
                "tasks": o.listed(tasks) or None,
                "split": split,
                "device": device,
                "engine": engine,
                "trust_remote_code": trust_remote_code,
                "progress": advance,
            }
            unrecorded: dict[str, Any] = {
                "target": target,
                "draft": draft,
                "compression": compression,
                "prompts": prompts,
                "max_new_tokens": max_new_tokens,
            }
            given = {name: value for name, value in unrecorded.items() if value is not None}
            if folder is None:
                rows = bench_pair(policy, drafter=drafter or "language_model", **given, **common)
            elif given:
                names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
                raise DraftgaugeError(
                    f"the recorded run in {folder} has its own pair and prompts: leave out {names}, or the run"
                )
            else:
                rows = bench_run(folder, policy, drafter=drafter, **common)
        columns = {
            "compression": "target",
            "policy": "policy",
            "tokens_per_step": "tokens/step",
            "tokens_per_second": "tokens/s",
            "tokens_per_second_low": "95% from",
            "tokens_per_second_high": "to",
            "ratio_to_plain": "x plain",
            "gain": "over best fixed",
            "ratio_to_best_transformers": "x best transformers",
            "mismatches": "mismatches",
        }
        show_table("All tasks together, live", (row for row in rows if row["task"] == "all"), columns)
        save_json(json, rows)
