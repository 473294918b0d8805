"""The pair that comes with the package: a trained target and two drafts of one vocabulary."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from draftgauge.core.errors import ModelError

REFERENCE = "reference"
PARTS = ("target", "draft", "draft-small")
PAIR_FOLDER = Path(__file__).parent / "reference_pair"
TOOLS_FILE = PAIR_FOLDER / "tools.jsonl"  # prompts of agents and calls of tools, for targets whose template has them
QUESTIONS_FILE = PAIR_FOLDER / "questions.jsonl.xz"  # for training drafters; no prompt shares a template with them


SETTING = ":position="  # behind a drafter's folder, the one setting that a source can name


def source_setting(source: str | Path) -> tuple[str, str | None]:
    """A source and its setting, if it names one."""
    name, given, value = str(source).partition(SETTING)
    return name, value if given else None


def reference_path(part: str = "target", folder: Path = PAIR_FOLDER) -> Path:
    """Folder of one part of the bundled pair, as ``save_pretrained`` wrote it, tokenizer included."""
    if part not in PARTS:
        raise ModelError(f"the reference pair has no part {part!r}: choose one of {', '.join(PARTS)}")
    path = folder / part
    if not (path / "model.safetensors").is_file():
        raise ModelError(f"the bundled {part} is not in {folder}: reinstall draftgauge")
    return path


def bundled_questions() -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in lzma.decompress(QUESTIONS_FILE.read_bytes()).splitlines()]


def resolve_source(source: str | Path) -> str | Path:
    """A source with the bundled pair's names, ``reference`` (the target) or ``reference/<part>``, as folders; without a
    setting.
    """
    source = source_setting(source)[0] if SETTING in str(source) else source
    name, _, part = str(source).partition("/")
    return reference_path(part or "target") if name == REFERENCE and isinstance(source, str) else source
