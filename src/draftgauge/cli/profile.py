"""``draftgauge profile``: record a pair's trace and cost curve."""

from __future__ import annotations

from shlex import quote
from typing import Any

from draftgauge.cli.console import by_target, console, named, progress, say, show_table, show_verdicts, warn
from draftgauge.requests import ProfileRequest

COLUMNS = named("task", "prompts") | {
    "mean_accepted": "tokens accepted of the longest draft",
    "first_accepted": "first accepted",
    "best_fixed_gamma": "best length (0: do not draft)",
    "tokens": "tokens",
    "cost_ratio": "draft / verify cost",
}
QUALITY_COLUMNS = {
    "compression": "target",
    "verify_one_ms": "verify(1), ms",
    "kl": "KL to uncompressed, nats",
    "agreement": "same choice",
}
EXPERT_COLUMNS = {"k": "k", "ms": "verify(k), ms", "experts": "experts that a layer reads"}
PLAN_COLUMNS = {
    "compression": "target",
    **named("prompts", "positions"),
    "longest": "longest text",
    "weights_gib": "weights GiB",
    "cache_gib": "keys, values GiB",
    "logits_gib": "logits GiB",
    "copies_gib": "copies, libraries GiB",
    "memory_gib": "memory GiB",
    "free_gib": "free",
    "disk_gib": "disk GiB",
    "free_disk_gib": "free",
    "fits": "fits",
    "minutes": "about minutes",
}


def profile(request: ProfileRequest) -> list[dict[str, Any]]:
    from draftgauge.api.profile import profile as run

    with progress() as advance:
        rows = run(request, progress=advance)
    if request.plan:
        show_table("What recording takes, at most", rows, PLAN_COLUMNS)
        return rows
    differing = {"differing": "not the target's choice"} if request.outputs is not None else {}
    show_table("Recorded", rows, by_target(rows, COLUMNS | differing))
    if any(row["kl"] is not None for row in rows):
        whole = [row for row in rows if row["task"] == "all"]
        show_table("Quality beside speed", whole, QUALITY_COLUMNS)
    for row in rows:
        if row["task"] == "all" and "experts_1" in row:
            counts = range(1, row["gamma_max"] + 2)
            by_count = [{"k": k, "ms": row[f"verify_{k}_ms"], "experts": row[f"experts_{k}"]} for k in counts]
            show_table("Verifying k tokens with a mixture of experts", by_count, EXPERT_COLUMNS)
    for kernels in dict.fromkeys(row["kernels"] for row in rows if "kernels" in row):
        say(f"llama.cpp: {kernels}.")
    if request.seconds is not None:
        _show_cut(request, rows)
    for compression, doubt in {row["compression"]: row["cost_doubt"] for row in rows}.items():
        if doubt:
            warn(
                f"the costs of {compression} are not to be trusted, {doubt}: run the same command again with "
                "--measure, a larger --cost-seconds and nothing else on the machine"
            )
    from draftgauge.api.replay import replay

    show_verdicts(replay(request.out))
    out = quote(str(request.out))
    say(f"Next: draftgauge replay {out}   or   draftgauge report {out}")
    return rows


def _show_cut(request: ProfileRequest, rows: list[dict[str, Any]]) -> None:
    """How many prompts were recorded, where not all."""
    from draftgauge.pair.prompts import choose_prompts

    asked = len(choose_prompts(request.prompts)[1])
    for row in rows:
        if row["task"] == "all" and row["prompts"] < asked:
            said = f"Target {row['compression']}: {row['prompts']} of {asked} prompts"
            why = f"the others were left out, or not begun within {request.seconds:g} s."
            console.print(f"{said}; {why}", highlight=False)
