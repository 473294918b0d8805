"""``draftgauge replay``: what any policy would have done on a recorded trace."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import ReplayRequest
from draftgauge.cli.console import by_target, show_table, show_verdicts, source_columns, warn

COLUMNS = {
    "policy": "policy",
    "ratio_to_plain": "x plain",
    "gain": "gain [95%]",
    "tokens_per_second": "modelled tokens/s",
    "tokens_per_step": "tokens/step",
    "p_holm": "p (Holm)",
    "captured": "captured",
}


BATCH_COLUMNS = {
    "compression": "target",
    "batch": "requests",
    "policy": "policy",
    "drafted_per_step": "drafted/step",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "modelled tokens/s, all requests",
    "ratio_to_plain": "x plain",
    "gain": "gain over the best length [95%]",
}


def replay(request: ReplayRequest) -> list[dict[str, Any]]:
    from draftgauge.api.replay import replay as run

    rows = run(request, on_warning=warn)
    if request.batches:
        from draftgauge.replaying.batch_rows import shown_rows

        show_table("The best fixed length by batch size, and other policies", shown_rows(rows), BATCH_COLUMNS)
        return rows
    pooled = [row for row in rows if row["task"] == "all"]
    show_table(_title(pooled), pooled, by_target(pooled, COLUMNS | source_columns(pooled)))
    show_verdicts(pooled)
    return rows


def _title(rows: list[dict[str, Any]]) -> str:
    """What the table is about: which prompts, and what gains are over."""
    from draftgauge.replaying.evaluate import SAME_PROMPTS
    from draftgauge.replaying.splits import EVERYTHING

    lengths = dict.fromkeys((row["compression"], row["best_fixed_gamma"]) for row in rows)
    named = ", ".join(f"{best} ({compression})" for compression, best in lengths)
    prompts = "All prompts" if rows[0]["split"] == EVERYTHING else f"{rows[0]['split'].capitalize()} prompts"
    chosen = "these prompts" if rows[0]["best_fixed_from"] == SAME_PROMPTS else "training prompts"
    tuned = ", as are the parameters of tuned rules" if any(row["best_rival"] is not None for row in rows) else ""
    return f"{prompts}, all tasks together; gains are over the best fixed length chosen on {chosen}: {named}{tuned}"
