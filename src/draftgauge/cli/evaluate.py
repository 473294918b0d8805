"""``draftgauge evaluate``: a trained drafter on held-out prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import friendly_errors, progress, save_json, show_table


def evaluate(
    drafter: Annotated[Path, typer.Argument(help="Folder of a drafter that `draftgauge train` wrote.")],
    target: Annotated[str | None, typer.Option(help="Its target; the one that the folder names if left out.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="A prompt file, or 'reference:SPLIT'; the bundled test prompts if left out.")
    ] = None,
    per_task: o.PerTask = None,
    max_new_tokens: o.MaxNewTokens = 96,
    depths: Annotated[
        int | None, typer.Option(min=1, help="Tokens a draft; as many as it was trained for if left out.")
    ] = None,
    device: o.Device = None,
    engine: o.Engine = "auto",
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Acceptance by depth with intervals, accepted tokens a step (MAT) forced, live and with draft trees, retention and speed."""
    from draftgauge.api.evaluate import evaluate as measure

    with friendly_errors("Nothing was written."):
        with progress() as advance:
            rows = measure(
                drafter,
                target=target,
                prompts=prompts,
                per_task=per_task,
                max_new_tokens=max_new_tokens,
                depths=depths,
                device=device,
                engine=engine,
                trust_remote_code=trust_remote_code,
                progress=advance,
            )
        by_depth = {"depth": "depth", "alpha": "alpha", "low": "95% from", "high": "to"}
        show_table(
            "Acceptance by depth, given that all before it was accepted",
            (row for row in rows if "depth" in row),
            by_depth,
        )
        whole = {
            "mat": "MAT",
            "mat_low": "95% from",
            "mat_high": "to",
            "retention": "retention",
            "live_mat": "live MAT",
            "tree_mat": "tree MAT",
            "draft_ms": "ms/drafted token",
            "tokens_per_second": "tokens/s",
            "ratio": "x plain",
        }
        show_table("The drafter", (row for row in rows if "mat" in row), whole)
        parts = {
            "task": "task",
            "distance": "context needed",
            "measure": "measure",
            "estimate": "estimate",
            "low": "95% from",
            "high": "to",
        }
        show_table("By task, and by the context that a token needs", (row for row in rows if "measure" in row), parts)
        save_json(json, rows)
