"""Profiles of tiny models in a second or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from draftgauge.api.profile import profile
from draftgauge.traces.reader import read_trace
from draftgauge.traces.trace import Trace
from tiny import save_noisy, save_tiny

PROMPTS = 11
SMALL: dict[str, Any] = {"gamma_max": 3, "max_new_tokens": 8, "cost_seconds": 0}


def save_models(folder: Path) -> dict[str, Any]:
    """Target, draft and prompts in a folder, as ``profile`` takes them."""
    target = save_tiny(folder / "target")
    save_noisy(folder / "draft")
    tasks = ("even", "odd")
    lines = [{"prompt": f"prompt number {n}", "id": f"p{n}", "task": tasks[n % 2]} for n in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return {"target": target, "draft": folder / "draft", "prompts": folder / "prompts.jsonl"}


def record(models: dict[str, Any], out: Path, **options: Any) -> Trace:
    profile(**(models | SMALL | {"out": out} | options))
    return read_trace(out)
