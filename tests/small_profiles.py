"""Profiles of tiny models in a second or two."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftgauge.api.profile import profile
from draftgauge.traces.run import read_trace
from draftgauge.traces.trace import Trace
from tiny import noisy, save_noisy, save_tiny, tiny_tokenizer
from tiny_families import tiny_family

PROMPTS = 11
SMALL: dict[str, Any] = {"gamma_max": 3, "max_new_tokens": 8, "cost_seconds": 0}


def save_models(folder: Path, splits: Sequence[str] = ("",) * PROMPTS) -> dict[str, Any]:
    """Target, draft and as many prompts as splits in a folder, as ``profile`` takes them."""
    target = save_tiny(folder / "target")
    save_noisy(folder / "draft")
    lines = [
        {"prompt": f"prompt number {n}", "id": f"p{n}", "task": ("even", "odd")[n % 2], "split": split}
        for n, split in enumerate(splits)
    ]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"target": target, "drafter": folder / "draft", "prompts": folder / "prompts.jsonl"}


def save_hybrid(folder: Path, noise: float = 0.0) -> Path:
    """A tiny Qwen3.5: three layers with a recurrent state to one of attention."""
    noisy(tiny_family("qwen3_5_text"), noise).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def record(models: dict[str, Any], out: Path, **options: Any) -> Trace:
    profile(**(models | SMALL | {"out": out} | options))
    return read_trace(out)
