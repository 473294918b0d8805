"""The bundled pair: trained again from nothing, and evaluated on its held-out prompts."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.requests import (
    PairSpec,
    ProfileRequest,
    PromptSpec,
    ReferenceEvaluateRequest,
    ReferenceTrainRequest,
)
from draftgauge.api.verb import verb
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import read_prompts
from draftgauge.models.base import CachedModel
from draftgauge.models.device import choose_device
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.replay.acceptance import acceptance_by_depth
from draftgauge.traces.build import select
from draftgauge.traces.reader import read_trace
from draftgauge.traces.trace import Trace
from draftgauge.training.reference.card import write_card
from draftgauge.training.reference.recipe import DRAFT_SHAPES, Recipe, Report, train_reference

ALL = "all"


@verb(ReferenceTrainRequest)
def train_pair(request: ReferenceTrainRequest, *, report: Report) -> Path:
    """Train the reference pair, or a smaller relative of it, with no download; returns its folder.

    ``out`` receives ``target/``, ``draft/``, ``draft-small/`` and ``prompts/``.

    Args:
        request: where to, and how much.
        report: told the stage and its running figures.
    """
    recipe = Recipe(seed=request.randomness.seed)
    scaled = recipe if request.scale == 1 else recipe.scaled(request.scale)
    work = request.work or request.out / "work"
    return train_reference(request.out, work, scaled, choose_device(request.machine.device), report)


@verb(ReferenceEvaluateRequest)
def evaluate_pair(request: ReferenceEvaluateRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Figures of a pair on its test prompts, a row for every model and task (and ``all``).

    Rows of the target hold ``perplexity`` (of the reference answers, given their prompts) and ``distinct_4grams``
    (share of different 4-grams in its greedy outputs, 1 without repetition); rows of a draft hold ``perplexity``,
    ``accepted_at_1``, ``_4`` and ``_8`` (acceptance at that depth, given acceptance before it) and ``mean_accepted``
    of ``gamma_max``.

    Args:
        request: which pair.
        progress: told (what, done, total).
    """
    folder = request.folder or PAIR_FOLDER
    prompts = folder / "prompts" / "test.jsonl"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in DRAFT_SHAPES:
            run = Path(scratch) / name
            spec = PairSpec(target=str(folder / "target"), draft=str(folder / name))
            profile(
                ProfileRequest(
                    out=run,
                    pair=spec,
                    prompts=PromptSpec(prompts=str(prompts)),
                    output=request.output,
                    drafts=request.drafts,
                ),
                progress=progress,
            )
            pair = load_pair(spec)
            trace = read_trace(run)
            if name == next(iter(DRAFT_SHAPES)):
                surprise = _surprise(pair.target, pair, prompts)
                rows += [_target_row(pair.target, trace, task, surprise) for task in [*surprise, ALL]]
            assert pair.draft is not None
            surprise = _surprise(pair.draft, pair, prompts)
            rows += [_draft_row(name, pair.draft, trace, task, surprise) for task in [*surprise, ALL]]
    if request.write_card:
        write_card(folder, rows)
    return rows


@torch.inference_mode()
def _surprise(model: CachedModel, pair: Any, prompts: Path) -> dict[str, list[tuple[float, int]]]:
    """Nats and tokens of every reference answer, by task."""
    found: dict[str, list[tuple[float, int]]] = {}
    for prompt in read_prompts(prompts):
        question = pair.encode(prompt)
        answer = pair.tokenizer(prompt.reference, add_special_tokens=False).input_ids
        tokens = torch.tensor(question + answer, device=model.spec.device)
        model.reset()
        logits = model.forward(tokens[:-1])[len(question) - 1 :]
        nats = F.cross_entropy(logits, tokens[len(question) :], reduction="sum")
        found.setdefault(prompt.task, []).append((float(nats), len(answer)))
    return found


def _perplexity(surprise: dict[str, list[tuple[float, int]]], task: str) -> float:
    pairs = [pair for name, values in surprise.items() for pair in values if task in (name, ALL)]
    return math.exp(sum(nats for nats, _ in pairs) / sum(count for _, count in pairs))


def _part(trace: Trace, task: str) -> Trace:
    return select(trace, np.array([task in (p.task, ALL) for p in trace.prompts]))


def _target_row(
    model: CachedModel, trace: Trace, task: str, surprise: dict[str, list[tuple[float, int]]]
) -> dict[str, Any]:
    part = _part(trace, task)
    distinct = total = 0
    for first, end in zip(part.offsets[:-1], part.offsets[1:], strict=True):
        tokens = part.token[first:end].tolist()
        grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
        distinct, total = distinct + len(set(grams)), total + len(grams)
    return {
        "model": "target",
        "task": task,
        "parameters": model.module.num_parameters(),
        "perplexity": _perplexity(surprise, task),
        "distinct_4grams": distinct / total if total else None,
        "output_tokens": part.positions,
    }


def _draft_row(
    name: str, model: CachedModel, trace: Trace, task: str, surprise: dict[str, list[tuple[float, int]]]
) -> dict[str, Any]:
    part = _part(trace, task)
    alpha = {row["depth"]: row["rate"] for row in acceptance_by_depth(part) if row["task"] == ALL}
    return {
        "model": name,
        "task": task,
        "parameters": model.module.num_parameters(),
        "perplexity": _perplexity(surprise, task),
        "accepted_at_1": alpha[1],
        "accepted_at_4": alpha[4],
        "accepted_at_8": alpha[8],
        "mean_accepted": float(part.accepted.mean()),
    }
