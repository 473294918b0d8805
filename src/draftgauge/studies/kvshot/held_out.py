"""The held-out texts of a study: decoded once by the target, kept in a file, read by every cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from draftgauge.core.progress import Progress
from draftgauge.core.prompts import mixed_prompts, prompts_sha256
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.alpha import Ints
from draftgauge.diagnostics.distance import WINDOWS, needed_context
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.drafters.reuse import target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.prompts_text import encode_prompts
from draftgauge.studies.kvshot.cells import KEPT, read_kept


def make_texts(
    path: Path,
    prompts: Path,
    per_task: int | None,
    target: CachedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: DecodingSettings,
    progress: Progress,
) -> None:
    """Decode the first ``per_task`` prompts of each task (all if None) unless the file ``path`` is there.

    Raises:
        DraftgaugeError: if the file is there, but of other prompts, settings or another target.
    """
    identity = {
        "target_fingerprint": target_fingerprint(target.module),
        "prompts_sha256": prompts_sha256(prompts),
        "per_task": per_task,
        "max_new_tokens": settings.max_new_tokens,
        "windows": list(WINDOWS),
    }
    if read_kept(path, identity) is not None:
        return
    longest = target.spec.context - settings.max_new_tokens
    texts = greedy_texts(
        target, encode_prompts(mixed_prompts(prompts, per_task), tokenizer, longest), settings, progress
    )
    classes = needed_context(target.module, texts)
    rows = [
        {"task": text.task, "prompt": text.prompt, "output": text.output, "needs": needs.tolist()}
        for text, needs in zip(texts, classes, strict=True)
    ]
    KEPT.write(path, {"identity": identity, "texts": rows})


def read_texts(path: Path) -> tuple[list[HeldOutText], list[Ints]]:
    """The texts, and for each output token the class of the context that it needs."""
    rows = KEPT.read(path)["texts"]
    texts = [HeldOutText(tuple(row["prompt"]), tuple(row["output"]), row["task"]) for row in rows]
    return texts, [np.array(row["needs"], np.int64) for row in rows]
