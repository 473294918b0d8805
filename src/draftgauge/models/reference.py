"""The pair that comes with the package: a trained target and two drafts of one vocabulary."""

from __future__ import annotations

from pathlib import Path

from draftgauge.core.errors import ModelError

REFERENCE = "reference"
PARTS = ("target", "draft", "draft-small")
PAIR_FOLDER = Path(__file__).parent / "reference_pair"


def reference_path(part: str = "target", folder: Path = PAIR_FOLDER) -> Path:
    """Folder of one part of the bundled pair, as ``save_pretrained`` wrote it, tokenizer included.

    Raises:
        ModelError: for an unknown part, or where the weights are not there.
    """
    if part not in PARTS:
        raise ModelError(f"the reference pair has no part {part!r}: choose one of {', '.join(PARTS)}")
    path = folder / part
    if not (path / "model.safetensors").is_file():
        raise ModelError(
            f"the bundled {part} is not in {folder}: reinstall draftgauge, or train it with `draftgauge reference "
            "train`"
        )
    return path


def resolve_source(source: str | Path, part: str = "target") -> str | Path:
    """Turn ``reference`` (this part of the pair) and ``reference/<part>`` into folders; other sources pass as they are.

    Raises:
        ModelError: see :func:`reference_path`.
    """
    if source == REFERENCE:
        return reference_path(part)
    if isinstance(source, str) and source.startswith(f"{REFERENCE}/"):
        return reference_path(source.removeprefix(f"{REFERENCE}/"))
    return source
