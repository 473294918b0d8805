"""Published models in the folder that DRAFTGAUGE_REAL_MODELS names; without it the tests here are skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

QUESTIONS = {
    "code": "Write a Python function that returns the sum of the even numbers in a list.",
    "math": "A train drives 60 km in 40 minutes. How far does it drive in two hours?",
}


@pytest.fixture(scope="session")
def model() -> Callable[[str], str]:
    """The path of a model by the name of its folder or file; skips where it is not there."""
    folder = os.environ.get("DRAFTGAUGE_REAL_MODELS", "")

    def path(name: str) -> str:
        if not folder:
            pytest.skip("needs published models: set DRAFTGAUGE_REAL_MODELS to a folder that holds them")
        if not (Path(folder) / name).exists():
            pytest.skip(f"needs {name} in {folder}")
        return str(Path(folder) / name)

    return path


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of two prompts to train on, and the same two to test on."""
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [
        {"id": f"{task}-{split}", "task": task, "split": split, "prompt": text}
        for task, text in QUESTIONS.items()
        for split in ("train", "test")
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
