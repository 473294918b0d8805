"""Trainings of a moment for a tiny target."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftgauge.training.reuse.request import TrainingSpec
from tiny import save_tiny

FEW = ("one", "two", "only")  # prompts; the first letter is the task


def log(folder: Path) -> list[dict[str, float]]:
    """What a training wrote of its steps."""
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def small_training(folder: Path, prompts: Sequence[str] = FEW, **settings: Any) -> TrainingSpec:
    """Of the folder's ``target`` on these prompts."""
    target = save_tiny(folder / "target", num_hidden_layers=4, eos_token_id=95)
    lines = [{"prompt": prompt, "task": prompt[0]} for prompt in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = {"target": str(target), "prompts": folder / "prompts.jsonl", "answers": folder / "answers.jsonl"}
    usual = {"new_tokens": 12, "depths": 3, "length": 64, "steps": 2, "batch": 2}
    return TrainingSpec(**(data | usual | settings))  # type: ignore[arg-type]
