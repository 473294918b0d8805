"""``draftgauge costs``: what a step costs in an engine, in servers started here or without a service."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import progress, say, show_table
from draftgauge.requests import CostsRequest

COLUMNS = {"batch": "requests", "length": "drafted", "verify_seconds": "verify, s", "draft_seconds": "draft, s"}


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
    show_table(f"{request.engine} at {first['context']} tokens of context, a step", rows, COLUMNS)
    if first["context_seconds"] or first["draft_context_seconds"]:
        law = f"A further token of text costs {first['context_seconds']:.3g} s a step and request"
        error = f"off by {first['context_error']:.1%} at most"
        say(f"{law}, {first['draft_context_seconds']:.3g} s a drafted token; {error}.")
    if request.served is not None and request.dspark_table is None:
        share = f"{first['beyond_seconds']:.3g} s ({first['beyond_seconds'] / request.served:.0%})"
        say(f"A served step takes {share} beyond its forward pass, which is added to every step.")
    say(f"wrote {request.out}")
    return rows
