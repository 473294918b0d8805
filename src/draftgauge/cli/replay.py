"""``draftgauge replay``: what any policy would have done on a recorded trace."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import by_target, label, say, show_table, show_verdicts, source_columns
from draftgauge.cli.rank import say_how_to_fit
from draftgauge.requests import ReplayRequest

COLUMNS = {
    "policy": "policy",
    "recommended": "advised",
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

    rows = run(request)
    if request.batches:
        from draftgauge.judging.batch_rows import shown_rows

        show_table("The best fixed length by batch size, and other policies", shown_rows(rows), BATCH_COLUMNS)
        return rows
    pooled = [row for row in rows if row["task"] == "all"]
    show_table(_title(pooled), pooled, by_target(pooled, COLUMNS | source_columns(pooled)))
    show_verdicts(pooled)
    from draftgauge.judging.contexts import shown

    by_context = {label(row): row["acceptance_by_context"] for row in pooled if "acceptance_by_context" in row}
    for name, rates in by_context.items():
        say(f"{name}: accepted at depth 1, 2, ... by context, {shown(rates)}")
    say_how_to_fit([row["policy"] for row in pooled if row["recommended"]])
    return rows


def _title(rows: list[dict[str, Any]]) -> str:
    """What the table is about: which prompts, and what gains are over."""
    from draftgauge.judging.evaluate import SAME_PROMPTS
    from draftgauge.judging.splits import EVERYTHING

    by_choice: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        prompts = "All prompts" if row["split"] == EVERYTHING else f"{row['split'].capitalize()} prompts"
        chosen = "these prompts" if row["best_fixed_from"] == SAME_PROMPTS else "training prompts"
        by_choice.setdefault((prompts, chosen), {})[label(row)] = row["best_fixed_gamma"]
    said = [
        f"{prompts}, all tasks together; gains are over the best fixed length chosen on {chosen}: "
        + ", ".join(f"{best} ({name})" for name, best in lengths.items())
        for (prompts, chosen), lengths in by_choice.items()
    ]
    tuned = ", as are the parameters of tuned rules" if any(row["best_rival"] is not None for row in rows) else ""
    return ". ".join(said) + tuned
