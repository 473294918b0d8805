"""``draftgauge bench`` and ``bench-servers``: ways of decoding live, interleaved prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftgauge.cli.console import (
    IncompleteError,
    by_target,
    console,
    fail,
    label,
    progress,
    say,
    show_table,
    show_verdicts,
)
from draftgauge.core.verb import describe_load, machine_load
from draftgauge.requests import BenchRequest, BenchServersRequest

COLUMNS = {
    "policy": "policy",
    "recommended": "advised",
    "ratio_to_plain": "x plain [95%]",
    "tokens_per_second": "tokens/s",
    "tpot_p50_ms": "ms a token, median",
    "tpot_p90_ms": "p90",
    "ttft_p50_ms": "ms to the first, median",
    "ttft_p90_ms": "p90",
    "tokens_per_step": "tokens/step",
    "mismatched_prompts": "outputs that differ",
    "near_ties": "of these near-ties",
    "gain": "gain [95%]",
    "over": "over",
    "ratio_to_best_transformers": "x best transformers",
}


def bench(request: BenchRequest) -> list[dict[str, Any]]:
    from draftgauge.api.bench import bench as run

    return _shown(run, request)


def bench_servers(request: BenchServersRequest) -> list[dict[str, Any]]:
    from draftgauge.api.bench_servers import bench_servers as run

    return _shown(run, request)


def _shown(run: Callable[..., list[dict[str, Any]]], request: Any) -> list[dict[str, Any]]:
    with progress() as advance:
        rows = run(request, progress=advance)
    pooled = [row for row in rows if row.get("task") == "all"]
    counts = {label(row): row["prompts"] for row in pooled}
    if len(set(counts.values())) > 1:
        prompts = ", ".join(f"{count} prompts ({name})" for name, count in counts.items())
    else:
        prompts = f"{pooled[0]['prompts']} prompts" if pooled[0]["prompts"] > 1 else "1 prompt"
    columns = by_target(pooled, COLUMNS)
    show_table(f"All tasks together, {prompts}, live", pooled, columns)
    unlike = max(pooled, key=lambda row: row.get("mismatched_prompts", 0))
    if differing := unlike.get("mismatched_prompts", 0):
        cause = "half precision and int8 round otherwise in passes of several tokens, so near-ties fall differently"
        say(f"Up to {differing} outputs differ from plain decoding's: {cause}. In float32 they are the same.")
        if (near := unlike.get("near_ties")) is not None:
            say(f"{near} of {differing} differ first at a near-tie of the target.")
    console.print(describe_load(machine_load()), highlight=False)
    show_verdicts(pooled)
    if short := [row for row in pooled if row.get("reached") is False]:
        figures = ", ".join(f"{row['policy']} at {row['ratio_to_plain']:.2f}x ({label(row)})" for row in short)
        fail(f"below --at-least {request.at_least:g}: {figures}")
        raise IncompleteError(rows)
    return rows
