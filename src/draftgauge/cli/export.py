"""``draftgauge export``: a trained drafter as serving engines load it."""

from __future__ import annotations

from typing import Any

from draftgauge.cli.console import named, say, show_table
from draftgauge.requests import ExportRequest

COLUMNS = named("format", "tensors", "parameters") | {"depths": "trained for"} | named("target")


def export(request: ExportRequest) -> list[dict[str, Any]]:
    from draftgauge.api.export import export as run

    rows = run(request)
    show_table(f"Exported to {request.out}", rows, COLUMNS)
    for engine, command in serving_commands(rows[0]).items():
        say(f"{engine}: {command}")
    if rows[0]["llama_cpp_lacks"]:
        say(f"llama.cpp cannot run it: it lacks {rows[0]['llama_cpp_lacks']}")
    return rows


def serving_commands(row: dict[str, Any]) -> dict[str, str]:
    """How engines are started with a checkpoint, by engine; drafts as long as it was trained for."""
    from draftgauge.policies.spec import FIXED
    from draftgauge.serving.engines import ENGINES, Deployment

    deployment = Deployment(row["target"] or "TARGET", row["folder"], row["format"])
    engines = [engine for engine in ENGINES.values() if row["format"] in engine.exported]
    if row["llama_cpp_lacks"]:
        engines.remove(ENGINES["llama-server"])
    return {engine.name: engine.flags(f"{FIXED}{row['depths'] or 1}", deployment) for engine in engines}
