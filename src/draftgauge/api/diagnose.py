"""What limits trained drafters: query error, gradients, gate and effective rank, measured on held-out prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftgauge.api.evaluate import depths_of, held_out_texts, load_single
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.bottlenecks import Bottlenecks, bottleneck_rows
from draftgauge.diagnostics.limits import measure_bottlenecks
from draftgauge.drafters.reuse.persistence import load_drafter, read_description
from draftgauge.models.tokenizer import end_tokens
from draftgauge.requests import DiagnoseRequest
from draftgauge.training.reuse.request import BLOCK, TTT
from draftgauge.training.reuse.tracking import read_history

# Of a configuration or a training: not what a drafter is made of, nor how it was trained.
INCIDENTAL = ("target_fingerprint", "target_source", "seed", "warm_start")


@verb(DiagnoseRequest)
def diagnose(request: DiagnoseRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Measure what limits drafters on texts that their target decodes.

    Returns:
        Rows of :func:`draftgauge.diagnostics.bottlenecks.bottleneck_rows` that begin with ``design``, ``recipe``,
        ``layers``, ``injection`` and ``init`` (``warm`` for those that started from another drafter). ``runs`` are the
        folders that were pooled: those whose drafters differ in nothing but the seed.

    Raises:
        ModelError: if a folder holds no drafter, or one of another target.
        PromptError: if the prompts cannot be read.
        DraftgaugeError: if two drafters were trained alike with the same seed.
    """
    descriptions = {run: read_description(run) for run in request.runs}
    groups: dict[str, list[Path]] = {}
    for run in request.runs:
        groups.setdefault(_made_alike(descriptions[run]), []).append(run)
    for runs in groups.values():
        seeds = [descriptions[run]["extra"].get("request", {}).get("seed") for run in runs]
        twice = [run for run, seed in zip(runs, seeds, strict=True) if seed is not None and seeds.count(seed) > 1]
        if twice:
            raise DraftgaugeError(
                f"{' and '.join(map(str, twice))} are trained alike, with the same seed: name one of them"
            )
    first = descriptions[request.runs[0]]
    depths = depths_of(request, first)
    for run, description in descriptions.items():
        if 0 < description["config"].get("block", 0) < depths:
            raise DraftgaugeError(f"{run} drafts blocks of {description['config']['block']}: ask for no more depths")
    target, tokenizer = load_single(request, first)
    nets = {run: load_drafter(run, target) for run in request.runs}
    settings = DecodingSettings(request.output.max_new_tokens, end_tokens=end_tokens(target, tokenizer))
    texts = held_out_texts(request, list(descriptions.values()), target, tokenizer, settings, progress)
    rows = []
    for runs in groups.values():
        measured: list[Bottlenecks] = []
        for run in runs:
            history = read_history(run)
            measured.append(measure_bottlenecks(nets[run], target.module, texts, depths, history, progress))
        config = nets[runs[0]].config
        labels = {
            "design": config.design,
            "recipe": BLOCK if config.block else TTT,
            "layers": config.layers,
            "injection": config.injection if config.traits.reads_kv else None,
            "init": "warm" if _warm(descriptions[runs[0]]) else "random",
            "runs": ", ".join(map(str, runs)),
        }
        rows += bottleneck_rows(measured, labels)
    return rows


def _made_alike(description: dict[str, Any]) -> str:
    """The same text for drafters that differ only in their seed."""
    parts = (description["config"], description["extra"].get("request", {}))
    made = [sorted((entry for entry in part.items() if entry[0] not in INCIDENTAL), key=str) for part in parts]
    return repr((made, _warm(description)))


def _warm(description: dict[str, Any]) -> bool:
    return description["extra"].get("request", {}).get("warm_start") is not None
