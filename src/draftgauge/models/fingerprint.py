"""Which model it was: a hash of its configuration and weights, fast for models of any size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import cached_file

from draftgauge.core.errors import ModelError
from draftgauge.models.engines.gguf_library import is_gguf
from draftgauge.models.folder import INDEX, model_folder

WHOLE = 64 << 20  # bytes up to which a file is hashed whole
EDGE = 1 << 20  # bytes taken from either end of a larger one
_TEXTS = (
    *("tokeni*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "chat_template*"),
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json"),
)
PIECES, PIECE = 64, 1 << 16  # places evenly apart, and the bytes taken there


def fingerprint(model: str | Path | PreTrainedModel, *, texts: bool = True) -> str:
    """SHA-256 over a model, as 64 hexadecimal digits.

    Of a folder or a model id, the configuration, the safetensors files and, as they decide what a text is to the model,
    its tokenizer and chat template are hashed; of a GGUF file, that file; of a model in memory, its configuration and
    tensors. What is larger than 64 MiB is hashed at its ends and at pieces between them.

    Args:
        model: a folder, a GGUF file, the id of a model that was loaded before, or a model in memory.
        texts: whether tokenizer, chat template and generation defaults count; without them it is that of the weights.
    """
    if isinstance(model, PreTrainedModel):
        pieces = _tensors(model)
    elif is_gguf(model) and Path(model).is_file():
        pieces = iter([("gguf", *_sized(Path(model)))])
    else:
        pieces = _files(files_of(model), texts)
    digest = hashlib.sha256()
    for name, size, piece in pieces:
        digest.update(f"{name}\0{size}\0".encode())
        digest.update(piece)
    return digest.hexdigest()


def weight_bytes_of(source: str | Path) -> int:
    """Bytes of the files of a model's or drafter's weights."""
    folder = files_of(source)
    if folder.is_file():
        return folder.stat().st_size
    weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(path.stat().st_size for path in weights)


def _sized(path: Path) -> tuple[int, bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            return size, file.read()
        pieces = []
        for start, length in _places(size):
            file.seek(start)
            pieces.append(file.read(length))
        return size, b"".join(pieces)


def _places(size: int) -> Iterator[tuple[int, int]]:
    yield 0, min(EDGE, size)
    for number in range(1, PIECES):
        yield number * size // PIECES, PIECE
    yield max(0, size - EDGE), EDGE


def files_of(source: str | Path) -> Path:
    """The folder of a model that is on this machine, or its GGUF file; of a hub id, the one in the hub's cache."""
    if not Path(source).exists():
        source = model_folder(source)
    if Path(source).exists():
        return Path(source)
    try:
        return Path(cached_file(str(source), "config.json", local_files_only=True)).parent
    except OSError as error:
        raise ModelError(
            f"cannot find the files of {source} to identify it: load it once, or give its folder"
        ) from error


def _files(folder: Path, texts: bool) -> Iterator[tuple[str, int, bytes]]:
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not weights:
        raise ModelError(f"{folder} lacks config.json or safetensors weights: is it the folder of a model?")
    index = [path for path in (folder / INDEX,) if path.is_file()]
    of_texts = sorted({path for pattern in _TEXTS for path in folder.glob(pattern) if path.is_file()}) if texts else []
    for path in (folder / "config.json", *weights, *index, *of_texts):
        yield path.name, *_sized(path)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, int, bytes]]:
    config = model.config.to_json_string(use_diff=True)
    yield "config", len(config), config.encode()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            size = len(raw)
            piece = raw if size <= WHOLE else torch.cat([raw[at : at + length] for at, length in _places(size)])
            yield f"{name} {tuple(tensor.shape)} {tensor.dtype}", len(raw), piece.cpu().numpy().tobytes()
