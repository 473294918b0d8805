"""The held-out texts of a study: decoded once by the target, kept in a file, read by every cell."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from draftgauge.core.progress import Progress
from draftgauge.core.prompts import first_per_task, for_judging, in_turn, prompts_sha256, read_prompts
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.drafters.reuse.persistence import target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.prompts_text import encode_with, keep_ends
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
    """Decode the first ``per_task`` prompts of each task (all if None) unless the file ``path`` is there."""
    identity = {
        "target_fingerprint": target_fingerprint(target.module),
        "prompts_sha256": prompts_sha256(prompts),
        "per_task": per_task,
        "max_new_tokens": settings.max_new_tokens,
    }
    if read_kept(path, identity) is not None:
        return
    longest = target.spec.context - settings.max_new_tokens
    chosen = in_turn(first_per_task(for_judging(read_prompts(prompts)), per_task))
    asked = keep_ends([(prompt.task, encode_with(tokenizer, prompt)) for prompt in chosen], longest)
    texts = greedy_texts(target, asked, settings, progress)
    KEPT.write(path, {"identity": identity, "texts": [asdict(text) for text in texts]})


def read_texts(path: Path) -> list[HeldOutText]:
    return [HeldOutText(tuple(row["prompt"]), tuple(row["output"]), row["task"]) for row in KEPT.read(path)["texts"]]
