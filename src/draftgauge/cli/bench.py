"""``draftgauge bench`` and ``bench-servers``: ways of decoding live, interleaved prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftgauge.api.requests import BenchRequest, BenchServersRequest
from draftgauge.cli.console import console, joined_interval, progress, show_table, show_verdicts, source_columns
from draftgauge.core.load import describe_load, machine_load
from draftgauge.core.printable import speed

COLUMNS = {
    "compression": "target",
    "policy": "policy",
    "ratio_to_plain": "x plain [95%]",
    "gain": "gain [95%]",
    "over": "over",
    "ratio_to_best_transformers": "x best transformers",
    "tokens_per_step": "tokens/step",
    "mismatches": "mismatches",
    "tokens_per_second": "tokens/s [95%]",
}


def bench(request: BenchRequest) -> list[dict[str, Any]]:
    from draftgauge.api.bench import bench as run

    with progress() as advance:
        rows = run(request, progress=advance)
    _show(rows)
    return rows


def bench_servers(request: BenchServersRequest) -> list[dict[str, Any]]:
    from draftgauge.api.bench_servers import bench_servers as run

    with progress() as advance:
        rows = run(request, progress=advance)
    _show(rows)
    return rows


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    pooled = [row for row in rows if row["task"] == "all"]
    shown = [
        {**row}
        | joined_interval(row, "ratio_to_plain")
        | joined_interval(row, "gain", "{:+.1%}".format)
        | joined_interval(row, "tokens_per_second", speed)
        for row in pooled
    ]
    counts = {row["compression"]: row["prompts"] for row in pooled}
    if len(set(counts.values())) > 1:
        prompts = ", ".join(f"{count} prompts ({name})" for name, count in counts.items())
    else:
        prompts = f"{pooled[0]['prompts']} prompts" if pooled[0]["prompts"] > 1 else "1 prompt"
    show_table(f"All tasks together, {prompts}, live", shown, COLUMNS | source_columns(shown))
    console.print(describe_load(machine_load()), highlight=False)
    show_verdicts(pooled)
