"""``draftgauge train``, ``evaluate``, ``diagnose`` and ``export``: a drafter that reads its target, up to engines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from draftgauge.cli.console import errors, named, progress, say, show_table
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.core.table import speed
from draftgauge.core.verb import busy_note, machine_load
from draftgauge.requests import DiagnoseRequest, EvaluateRequest, ExportRequest, TrainRequest

PLAN_COLUMNS = {
    "target_parameters": "target parameters",
    "parameters": "trained",
    "memory": "memory GiB",
    "seconds_a_step": "seconds a step",
    "hours": "hours",
    "disk_features": "features GB",
    "disk": "disk GB",
} | named("device", "devices")
TRAINED = named("design", "parameters", "steps", "tokens", "seconds") | {
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
    show_table("Trained", rows, TRAINED)
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


BY_DEPTH = {
    "depth": "depth",
    "alpha": "alpha [95%]",
    "agreement": "agreement, all positions",
    "survival": "all right so far",
}
WHOLE = {
    "mat": "MAT [95%]",
    "live_mat": "live MAT",
    "tokens_per_second": "tokens/s",
    "ratio_to_plain": "x plain",
    "draft_ms": "ms/drafted token",
    "retention": "retention",
    "tree_mat": "tree MAT",
}
PARTS = {"task": "task", "measure": "measure", "estimate": "estimate [95%]"}


def evaluate(request: EvaluateRequest) -> list[dict[str, Any]]:
    from draftgauge.api.evaluate import evaluate as run

    with progress() as advance:
        rows = run(request, progress=advance)
    depths = [row for row in rows if "depth" in row]
    show_table("Acceptance by depth (alpha: given that all before it was accepted)", depths, BY_DEPTH)
    show_table("The drafter", (row for row in rows if "mat" in row), WHOLE)
    show_table("By task", (row for row in rows if "measure" in row), PARTS)
    return rows


DRAFTER = named("design", "recipe", "layers", "injection", "seeds")
QUERY = {
    **DRAFTER,
    **named("depth", "layer"),
    "target_layer": "of target layer",
    "query_kl": "KL, nats [95%]",
    "uniform_kl": "KL of uniform attention",
}
CONTROLS = DRAFTER | {
    "depth": "depth",
    "control": "with",
    "agreement": "agreement",
    "agreement_own_query": "with its own",
    "difference": "difference [95%]",
}
GRADIENTS = {
    **DRAFTER,
    **named("group", "depth", "gradient_norm"),
    "gradient_to_weight": "over weights",
    "gradient_share": "positions reached",
    "draft_share": "of the draft",
}
RANKS = DRAFTER | {"group": "group", "effective_rank": "effective rank", "full_rank": "of"}
GATE = DRAFTER | {"depth": "depth", "gate_mean": "mean", "gate_open": "share open"}
TABLES = (
    ("Queries beside the target's own", "query_kl", QUERY),
    ("Agreement with the target's query in place", "control", CONTROLS),
    ("Gradients at the first and the last depth", "gradient_share", GRADIENTS),
    ("Effective rank of the drafter's own projections", "effective_rank", RANKS),
    ("Openness of the gate", "gate_mean", GATE),
)


def diagnose(request: DiagnoseRequest) -> list[dict[str, Any]]:
    from draftgauge.api.diagnose import diagnose as run

    with progress() as advance:
        rows = run(request, progress=advance)
    for title, measure, columns in TABLES:
        if shown := [row for row in rows if measure in row and "step" not in row]:
            show_table(title, shown, columns)
    return rows


EXPORTED = named("format", "tensors", "parameters") | {"depths": "trained for"} | named("target")


def export(request: ExportRequest) -> list[dict[str, Any]]:
    from draftgauge.api.export import export as run

    rows = run(request)
    show_table(f"Exported to {request.out}", rows, EXPORTED)
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
