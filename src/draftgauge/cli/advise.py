"""``draftgauge costs`` and ``advise``: what a step costs in an engine, and whether and how to speculate there."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import progress, say, show_table
from draftgauge.requests import AdviseRequest, CostsRequest

STEP = {"batch": "requests", "length": "drafted", "verify_seconds": "verify, s", "draft_seconds": "draft, s"}


def costs(request: CostsRequest) -> list[dict[str, Any]]:
    from draftgauge.api.engine_costs import costs as run

    with progress() as advance:
        rows = run(request, progress=advance)
    first = rows[0]
    if "command" in first:
        say(f"wrote {len(rows)} cases to {request.cases}; run\n{first['command']}")
        return rows
    if "table_error" in first:
        say(f"wrote {request.out}, SGLang's table of DSpark steps, off by {first['table_error']:.1%} at most")
        return rows
    show_table(f"{request.engine} at {first['context']} tokens of context, a step", rows, STEP)
    if first["context_seconds"] or first["draft_context_seconds"]:
        law = f"A further token of text costs {first['context_seconds']:.3g} s a step and request"
        error = f"off by {first['context_error']:.1%} at most"
        say(f"{law}, {first['draft_context_seconds']:.3g} s a drafted token; {error}.")
    if first["half_width"]:
        say(f"Servers of one setting differ: a step is known to within {first['half_width']:.1%}.")
    if request.served is not None and request.dspark_table is None:
        share = f"{first['beyond_seconds']:.3g} s ({first['beyond_seconds'] / request.served:.0%})"
        say(f"A served step takes {share} beyond its forward pass, which is added to every step.")
    say(f"wrote {request.out}")
    return rows


COLUMNS = {
    "policy": "setting",
    "recommended": "advised",
    "ratio_to_plain": "x plain [95%]",
    "tokens_per_second": "tokens/s",
    "tokens_per_step": "tokens/step",
    "acceptance_rate": "acceptance",
    "pays_below": "pays below",
    "best_from": "best from",
    "best_below": "to",
}
SHOWN = 12


def advise(request: AdviseRequest) -> list[dict[str, Any]]:
    from draftgauge.api.advise import advise as run
    from draftgauge.reporting.layout import environment

    rows = run(request)
    estimated = [row for row in rows if row["ratio_to_plain"] is not None]
    shown = sorted(estimated, key=lambda row: -row["ratio_to_plain"])[:SHOWN] if estimated else rows
    counted = f"the {len(shown)} fastest of {len(rows)} settings" if len(shown) < len(rows) else "all settings"
    unknown = "which step times a length pays below, and which costs of a token suit it best, in plain steps"
    title = f"{request.engine}: {counted if estimated else unknown}"
    show_table(title, shown, {key: heading for key, heading in COLUMNS.items() if estimated or key != "ratio_to_plain"})
    advised = next((row for row in rows if row["recommended"]), None)
    page = environment("draftgauge.serving", autoescape=False).get_template("advice.txt.j2")
    text = page.render(engine=request.engine, advised=advised, settings=request.settings)
    say(text.strip())
    return rows
