"""``draftgauge replay``: what any policy would have done on a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import friendly_errors, save_json, show_table, warn
from draftgauge.core.config import convert


def replay(
    folder: Annotated[Path, typer.Argument(help="A recorded run, or a folder of runs.")],
    policy: o.Policy = None,
    tasks: o.Tasks = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Evaluate on train, validation, test or all prompts; on test ones where the trace has training ones too."
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="RATIOS", help="Evaluate at these costs of a drafted token over a verification, e.g. .04,.10,.25"
        ),
    ] = None,
    json: o.Json = None,
) -> None:
    """Evaluate policies exactly on a trace with its measured cost curve; no model is loaded."""
    from draftgauge.api.replay import replay_rows

    with friendly_errors():
        ratios = [convert(part, float, "--sweep") for part in o.listed(sweep)]
        rows = replay_rows(folder, policy, tasks=o.listed(tasks) or None, split=split, sweep=ratios, on_warning=warn)
        columns = {"compression": "target"} | ({"cost_ratio": "cost ratio"} if ratios else {})
        columns |= {
            "policy": "policy",
            "tokens_per_step": "tokens/step",
            "tokens_per_second": "modelled tokens/s",
            "ratio_to_plain": "x plain",
            "gain": "gain",
            "gain_low": "95% from",
            "gain_high": "to",
            "p_holm": "p (Holm)",
            "captured": "captured",
        }
        pooled = [row for row in rows if row["task"] == "all"]
        show_table(_title(pooled, bool(ratios)), pooled, columns)
        save_json(json, rows)


def _title(rows: list[dict[str, Any]], swept: bool) -> str:
    """What the table is about: which prompts, and what gains are over."""
    from draftgauge.replay.evaluate import SAME_PROMPTS
    from draftgauge.replay.splits import EVERYTHING

    lengths = dict.fromkeys((row["compression"], row["cost_ratio"], row["best_fixed_gamma"]) for row in rows)
    named = ": " + ", ".join(f"{best} ({compression})" for compression, _, best in lengths) if not swept else ""
    prompts = "All prompts" if rows[0]["split"] == EVERYTHING else f"{rows[0]['split'].capitalize()} prompts"
    chosen = "these prompts" if rows[0]["best_fixed_from"] == SAME_PROMPTS else "training prompts"
    return f"{prompts}, all tasks together; gains are over the best fixed length chosen on {chosen}{named}"
