"""``draftgauge train``: a drafter that reuses hidden states, the KV cache, both or neither."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from draftgauge.cli.console import errors, named, progress, say, show_table
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.core.table import speed
from draftgauge.core.verb import busy_note, machine_load
from draftgauge.requests import TrainRequest

PLAN_COLUMNS = {
    "target_parameters": "target parameters",
    "parameters": "trained",
    "memory": "memory GiB",
    "seconds_a_step": "seconds a step",
    "hours": "hours",
    "disk_features": "features GB",
    "disk": "disk GB",
} | named("device", "devices")
COLUMNS = named("design", "parameters", "steps", "tokens", "seconds") | {
    "tokens_per_second": "tokens/s",
    "loss": "last loss, nats",
    "peak_memory_gib": "peak GiB",
}


def train(request: TrainRequest) -> list[dict[str, Any]]:
    from draftgauge.api.train import train as run
    from draftgauge.training.world import world_here

    if not world_here().leads:  # under torchrun the first process speaks for all, and writes what is asked for
        run(request)
        raise SystemExit(0)
    with progress() as advance:
        rows = run(request, progress=advance, report=_show)
    if request.plan:
        show_table("Before anything starts", rows, PLAN_COLUMNS)
        if said := busy_note(machine_load(), request.training.threads):
            say(said)
        return rows
    show_table("Trained", rows, COLUMNS)
    out, spec = str(request.out), request.training
    prompts = [] if spec.prompts is None else ["--prompts", str(spec.prompts)]
    alike = [*spec.rendering().options, *(["--trust-remote-code"] if spec.trust_remote_code else [])]
    held = ["--compression", spec.compression] if spec.compression != UNCOMPRESSED else []
    evaluate, generate = shlex.join([out, *prompts, *alike]), shlex.join(["--drafter", out, *held, *alike])
    say(f"Next: draftgauge evaluate {evaluate}   or   draftgauge generate PROMPT {generate}")
    return rows


def _show(row: Mapping[str, float]) -> None:
    gate = f", gate {row['gate_mean']:.2f}" if "gate_mean" in row else ""
    errors.print(
        f"step {row['step']:.0f} of {row['steps']:.0f}: loss {row['loss']:.3f} nats, agrees with the target "
        f"{row['agreement/0']:.0%} at first{gate}, {speed(row['tokens_per_second'])} tokens/s, "
        f"{row['seconds_left'] / 60:.1f} min left",
        highlight=False,
        soft_wrap=True,
    )
