"""``draftgauge train``: a drafter that reuses hidden states, the KV cache, both or neither."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import console, errors, friendly_errors, progress, save_json, show_table

PLAN_COLUMNS = {
    "target_parameters": "target parameters",
    "parameters": "trained",
    "memory": "memory GiB",
    "seconds_a_step": "seconds a step",
    "hours": "hours",
    "disk_features": "features GB",
    "disk": "disk GB",
    "device": "device",
}


def train(
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; run again with the same folder to resume.")
    ] = None,
    target: o.Target = "reference",
    reuse: Annotated[str, typer.Option(help="What the drafter reads: hidden, kv, hybrid, cross or none.")] = "hybrid",
    plan: Annotated[
        bool, typer.Option("--plan", help="Print parameters, memory, time and disk, and train nothing.")
    ] = False,
    layers: Annotated[int, typer.Option(help="Drafter layers; more than one for kv and none only.")] = 1,
    injection: Annotated[
        str, typer.Option(help="How KV of several target layers enters: concat, project or project-rope.")
    ] = "project-rope",
    taps: Annotated[
        str | None,
        typer.Option(help="Target layers to read, from 0, with commas; a low, middle and high one if left out."),
    ] = None,
    intermediate_size: Annotated[
        int | None, typer.Option(help="Width of the drafter's MLP; the target's if left out.")
    ] = None,
    draft_vocabulary: Annotated[
        int, typer.Option(help="Propose from the so many most frequent tokens only; 0 for all.")
    ] = 0,
    depths: Annotated[int, typer.Option("--depths", "-k", help="K, draft steps that training unrolls.")] = 7,
    length: Annotated[int, typer.Option(help="Longest conversation in tokens.")] = 1024,
    warm_start: Annotated[
        Path | None, typer.Option(help="Start a hybrid or cross drafter from this trained hidden one.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts for the target to answer; generated questions for the bundled target if left out."),
    ] = None,
    questions: Annotated[
        int, typer.Option(help="How many generated questions, or prompts of the file at most.")
    ] = 3000,
    new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 160,
    data_seed: Annotated[int, typer.Option(help="Seed of the generated questions.")] = 0,
    answers: Annotated[
        Path | None, typer.Option(help="File of the answers, made if missing; share it between designs.")
    ] = None,
    features: Annotated[str, typer.Option(help="'online', or 'cached': computed once, to disk.")] = "online",
    cache: Annotated[
        Path | None, typer.Option(help="Folder of cached features, to share between designs; OUT/features if left out.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 1500,
    batch: Annotated[int, typer.Option(help="Conversations a step.")] = 8,
    accumulation: Annotated[
        int, typer.Option(help="Parts into which a step's conversations are split, to save memory.")
    ] = 1,
    learning_rate: Annotated[
        float | None, typer.Option(help="Peak learning rate; by the target's width if left out.")
    ] = None,
    loss: Annotated[
        str, typer.Option(help="kl, cross-entropy (both to the target's distribution) or greedy (to its token).")
    ] = "kl",
    step_decay: Annotated[float, typer.Option(help="Draft step k weighs this to the power of k.")] = 0.8,
    precision: Annotated[str, typer.Option(help="auto (bf16 where the hardware has it), fp32 or bf16.")] = "auto",
    compile_: Annotated[bool, typer.Option("--compile", help="Use torch.compile, where its result agrees.")] = False,
    compression: Annotated[str, typer.Option(help="Target compression: none, fp16, bf16, int8 or nf4.")] = "none",
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 100,
    track: Annotated[str | None, typer.Option(help="Also log to tensorboard, wandb or trackio.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    device: o.Device = None,
    seed: o.Seed = 0,
    trust_remote_code: o.TrustRemoteCode = False,
    json: o.Json = None,
) -> None:
    """Train a drafter on the target's own answers, unrolled over several draft steps as it will be used."""
    from draftgauge.api.train import plan as run_plan
    from draftgauge.api.train import train as run_train
    from draftgauge.core.config import convert
    from draftgauge.core.errors import DraftgaugeError
    from draftgauge.training.reuse.request import TrainingSpec

    with friendly_errors("Everything up to the last checkpoint is kept: run the same command again to go on."):
        request = TrainingSpec(
            target=target,
            reuse=reuse,
            layers=layers,
            injection=injection,
            taps=None if taps is None else convert(taps, tuple[int, ...], "--taps"),
            intermediate_size=intermediate_size,
            draft_vocabulary=draft_vocabulary,
            depths=depths,
            length=length,
            prompts=prompts,
            questions=questions,
            new_tokens=new_tokens,
            data_seed=data_seed,
            answers=answers,
            features=features,
            cache=cache,
            warm_start=warm_start,
            steps=steps,
            batch=batch,
            accumulation=accumulation,
            learning_rate=learning_rate,
            loss=loss,
            step_decay=step_decay,
            seed=seed,
            precision=precision,
            compile=compile_,
            compression=compression,
            device=device,
            checkpoint_every=checkpoint_every,
            track=track,
            threads=threads,
            trust_remote_code=trust_remote_code,
        )
        if plan:
            rows = run_plan(request, out)
            show_table("Before anything starts", rows, PLAN_COLUMNS)
            save_json(json, rows)
            return
        if out is None:
            raise DraftgaugeError("say where the drafter is to be kept: --out FOLDER")
        with progress() as advance:
            rows = run_train(request, out, advance, _show)
        columns = {
            "design": "design",
            "parameters": "parameters",
            "steps": "steps",
            "tokens": "tokens",
            "seconds": "seconds",
        }
        columns |= {"tokens_per_second": "tokens/s", "loss": "last loss, nats", "peak_memory_gib": "peak GiB"}
        show_table("Trained", rows, columns)
        save_json(json, rows)
        console.print(f"Next: draftgauge evaluate {out}   or   draftgauge generate --drafter {out}", highlight=False)


def _show(row: Mapping[str, float]) -> None:
    """The line of a row of the log."""
    gate = f", gate {row['gate']:.2f}" if "gate" in row else ""
    errors.print(
        f"step {row['step']:.0f} of {row['steps']:.0f}: loss {row['loss']:.3f} nats, agrees with the target "
        f"{row['agreement/0']:.0%} at first{gate}, {row['tokens_per_second']:,.0f} tokens/s, {row['seconds_left'] / 60:.1f} min left",
        highlight=False,
    )
