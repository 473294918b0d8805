"""The held-out texts of a study: decoded once by the target, kept in a file, read by every cell."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import atomic_write_text
from draftgauge.core.prompts import Prompt, prompts_sha256, read_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.alpha import Ints
from draftgauge.diagnostics.distance import WINDOWS, needed_context
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.models.base import CachedModel
from draftgauge.models.prompts_text import encode_prompt
from draftgauge.studies.kvshot.cells import Evaluation

Progress = Callable[[str, int, int], None]


def mixed_prompts(path: Path, per_task: int | None) -> list[Prompt]:
    """The first prompts of each task, tasks in turn, so that the first few are of every task.

    Raises:
        PromptError: if the file cannot be read.
    """
    by_task: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in read_prompts(path):
        by_task[prompt.task].append(prompt)
    turns = zip_longest(*(prompts[:per_task] for prompts in by_task.values()))
    return [prompt for prompt in chain.from_iterable(turns) if prompt is not None]


def encoded(prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, longest: int) -> list[tuple[str, list[int]]]:
    """Task and token ids of each prompt; the end is what is kept of one longer than ``longest``."""
    rows = []
    for prompt in prompts:
        messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
        rows.append((prompt.task, encode_prompt(tokenizer, messages or prompt.text)[-longest:]))
    return rows


def make_texts(
    path: Path,
    prompts: Path,
    evaluation: Evaluation,
    target: CachedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: DecodingSettings,
    fingerprint: str,
    progress: Progress,
) -> None:
    """Decode the held-out prompts unless the file is there.

    Args:
        path: the file to make.
        prompts: the prompt file.
        evaluation: how many of them, and how long the outputs.
        target, tokenizer: what decodes.
        settings: limit and end tokens.
        fingerprint: of the target.
        progress: told (what, done, total).

    Raises:
        DraftgaugeError: if the file is there, but of other prompts, settings or another target.
    """
    made = {
        "target_fingerprint": fingerprint,
        "prompts_sha256": prompts_sha256(prompts),
        "per_task": evaluation.per_task,
        "max_new_tokens": settings.max_new_tokens,
        "windows": list(WINDOWS),
    }
    if path.exists():
        if _read(path)["made"] != made:
            raise DraftgaugeError(
                f"{path} holds texts of other prompts, settings or another target: give this study a folder of its own"
            )
        return
    longest = target.spec.context - settings.max_new_tokens
    texts = greedy_texts(
        target, encoded(mixed_prompts(prompts, evaluation.per_task), tokenizer, longest), settings, progress
    )
    classes = needed_context(target.module, texts)
    rows = [
        {"task": text.task, "prompt": text.prompt, "output": text.output, "needs": needs.tolist()}
        for text, needs in zip(texts, classes, strict=True)
    ]
    atomic_write_text(path, json.dumps({"made": made, "texts": rows}) + "\n")


def read_texts(path: Path) -> tuple[list[HeldOutText], list[Ints]]:
    """The texts, and for each output token the class of the context it needs.

    Raises:
        DraftgaugeError: if the file cannot be read.
    """
    rows = _read(path)["texts"]
    texts = [HeldOutText(tuple(row["prompt"]), tuple(row["output"]), row["task"]) for row in rows]
    return texts, [np.array(row["needs"], np.int64) for row in rows]


def _read(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DraftgaugeError(
            f"cannot read the held-out texts {path} ({error}): remove the file, and it is made again"
        ) from error
    return document
