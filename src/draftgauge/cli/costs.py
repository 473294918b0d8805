"""``draftgauge costs``: what a step costs in an engine, without a service."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import say, show_table
from draftgauge.requests import CostsRequest

COLUMNS = {"batch": "requests", "length": "drafted", "verify_seconds": "verify, s", "draft_seconds": "draft, s"}


def costs(request: CostsRequest) -> list[dict[str, Any]]:
    from draftgauge.api.engine_costs import costs as run

    rows = run(request)
    first = rows[0]
    if "command" in first:
        say(f"wrote {len(rows)} cases to {request.cases}; run\n{first['command']}")
        return rows
    show_table(f"vllm at {first['context']} tokens of context, a step", rows, COLUMNS)
    law = f"A further token of text costs {first['context_seconds']:.3g} s a step and request"
    say(f"{law}, {first['draft_context_seconds']:.3g} s a drafted token; off by {first['context_error']:.1%} at most.")
    if request.served is not None:
        share = f"{first['beyond_seconds']:.3g} s ({first['beyond_seconds'] / request.served:.0%})"
        say(f"A served step takes {share} beyond its forward pass, which is added to every step.")
    say(f"wrote {request.out}")
    return rows
