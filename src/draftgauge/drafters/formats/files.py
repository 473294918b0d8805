"""The files of a published drafter, in a folder or on the hub: configuration and tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

from draftgauge.core.artefacts import read_json
from draftgauge.core.errors import ModelError
from draftgauge.core.files import file_sha256
from draftgauge.models.folder import (
    INDEX,
    check_index,
    check_pointers,
    explained,
    fingerprint,
    is_drafter_checkpoint,
    read_settings,
    resolve_source,
)

CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
MASK = "mask_embedding.pt"  # what DFlash checkpoints put in place of the target's embedding of the mask


def is_checkpoint(source: str | Path) -> bool:
    return has_config(source) and is_drafter_checkpoint(read_config(source))


def has_config(source: str | Path) -> bool:
    return _file(source, CONFIG) is not None


def read_config(source: str | Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint."""
    path = _file(source, CONFIG)
    if path is None:
        raise ModelError(f"{source} has no {CONFIG}: give the folder or the id of a drafter's checkpoint")
    return read_settings(path, "download the checkpoint again")


def read_tensors(source: str | Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """All tensors of a checkpoint, on the CPU."""
    tensors: dict[str, Tensor] = {}
    files: dict[str, str] = {}
    for path in weight_files(source, allow_pickle):
        try:
            pickled = path.suffix == ".bin"
            tensors |= (held := torch.load(path, map_location="cpu", weights_only=True) if pickled else load_file(path))
            files |= dict.fromkeys(held, path.name)
        except (SafetensorError, UnpicklingError, OSError, RuntimeError, EOFError, ValueError, TypeError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(f"{path} is damaged or half downloaded ({said}): download it again") from error
    if (named := _weight_map(source)) and (other := {name for name, _ in files.items() ^ named.items()}):
        raise ModelError(f"{source}: {INDEX} and its files disagree on {min(other)}: download the checkpoint again")
    return tensors


def _weight_map(source: str | Path) -> dict[str, str]:
    """The file of each weight by the index; empty where there is none."""
    check_index(source)
    index = _file(source, INDEX)
    return {} if index is None else read_json(index, error=ModelError)["weight_map"]


def weight_files(source: str | Path, allow_pickle: bool = False) -> list[Path]:
    """The files that hold the weights, all of them there."""
    if _file(source, MASK) is not None:
        raise ModelError(
            f"{source}: {MASK} is pickled and not read: put its vector into embed_tokens.weight of the checkpoint, a "
            "copy of the target's table, in the row of the mask token"
        )
    if names := set(_weight_map(source).values()):
        return [path for name in sorted(names) if (path := _file(source, name)) is not None]
    whole = _file(source, WEIGHTS)
    if whole is not None:
        return [whole]
    pickled = _file(source, PICKLED)
    if pickled is None:
        raise ModelError(f"{source} lacks {WEIGHTS}: the download is not complete, download the rest of it")
    if not allow_pickle:
        raise ModelError(
            f"{source} holds pickled weights ({PICKLED}), which can run code when they are read: convert them to "
            "safetensors, or, where a command reads them, pass --allow-pickle if you trust where they come from"
        )
    return [pickled]


def checkpoint_fingerprint(source: str | Path) -> str:
    """Which checkpoint it is, by configuration and weights."""
    path = _file(source, CONFIG)
    assert path is not None, "a loaded checkpoint has a configuration"
    pickled = path.parent / PICKLED
    if not list(path.parent.glob("*.safetensors")) and pickled.is_file():
        return hashlib.sha256(f"{file_sha256(path)} {file_sha256(pickled)}".encode()).hexdigest()
    return fingerprint(path.parent, texts=False)


def _file(source: str | Path, name: str) -> Path | None:
    """A file of a folder, or of a repository of the hub, downloaded if need be; None if there is none."""
    source = resolve_source(source)  # of the bundled models by their names
    folder = Path(source)
    if folder.is_dir():
        check_pointers(folder)
        return folder / name if (folder / name).is_file() else None
    if folder.exists() or str(source).count("/") != 1 or str(source).startswith((".", "/", "~")):
        return None
    with explained(source):
        found = cached_file(
            str(source), name, _raise_exceptions_for_gated_repo=False, _raise_exceptions_for_missing_entries=False
        )
    return None if found is None else Path(found)
