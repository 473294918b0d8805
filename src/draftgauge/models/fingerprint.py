"""Which model it was: a hash of its configuration and of all its weights, kept for files that have not changed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import cached_file

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import atomic_write_text, cache_folder, file_sha256
from draftgauge.models.folder import INDEX, OPENVINO_GRAPH, OPENVINO_WEIGHTS, is_gguf, is_openvino, model_folder

WHOLE = 64 << 20  # bytes above which a file's digest is kept in the cache
EDGE = 1 << 20  # bytes that the sampled fingerprint takes from either end of a larger file
RECENT = 2_000_000_000  # nanoseconds within which a file may change again without another time stamp
_TEXTS = (
    *("tokeni*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "chat_template*"),
    *("special_tokens_map.json", "added_tokens.json", "generation_config.json"),
)
PIECES, PIECE = 64, 1 << 16  # places evenly apart, and the bytes taken there


def fingerprint(model: str | Path | PreTrainedModel, *, texts: bool = True, sampled: bool = False) -> str:
    """SHA-256 over a model, as 64 hexadecimal digits.

    Of a folder or model id, it hashes the configuration, the safetensors or OpenVINO files, and, for what a text is,
    tokenizer and chat template. Of a GGUF file it is that file; of a model in memory, its configuration and
    tensors. Every byte counts, so equal fingerprints mean equal files on any machine. The user's cache keeps digests
    of files above 64 MiB, trusted as long as path, size, inode and times of change stay.

    Args:
        model: a folder, a GGUF file, the id of a model that was loaded before, or a model in memory.
        texts: whether tokenizer, chat template and generation defaults count; without them it is that of the weights.
        sampled: as earlier versions made it, which hashed larger files at their ends and at 64 pieces between them.
    """
    if isinstance(model, PreTrainedModel):
        pieces = _tensors(model)
    elif is_gguf(model) and Path(model).is_file():
        pieces = iter([("gguf", *_sized(Path(model), sampled))])
    else:
        pieces = _files(files_of(model), texts, sampled)
    digest = hashlib.sha256()
    for name, size, piece in pieces:
        digest.update(f"{name}\0{size}\0".encode())
        digest.update(piece)
    return digest.hexdigest()


def was_sampled(known: str, source: str | Path) -> bool:
    """Whether a fingerprint is that of these files as earlier versions made it."""
    with suppress(ModelError):
        return any(known == fingerprint(source, texts=texts, sampled=True) for texts in (True, False))
    return False


def weight_bytes_of(source: str | Path) -> int:
    """Bytes of the files of a model's or drafter's weights."""
    folder = files_of(source)
    if folder.is_file():
        return folder.stat().st_size
    names = (OPENVINO_WEIGHTS,) if is_openvino(folder) else ("*.safetensors", "*.bin")
    weights = next(filter(None, (list(folder.glob(name)) for name in names)), [])
    return sum(path.stat().st_size for path in weights)


def _sized(path: Path, sampled: bool) -> tuple[int, bytes]:
    size = path.stat().st_size
    if size > WHOLE and not sampled:
        return size, _digest(path)
    with path.open("rb") as file:
        if size <= WHOLE:
            return size, file.read()
        pieces = []
        for start, length in _places(size):
            file.seek(start)
            pieces.append(file.read(length))
        return size, b"".join(pieces)


def _digest(path: Path) -> bytes:
    """SHA-256 of a file, from the cache where it has not changed since."""
    path = path.resolve()
    before = _state(path)
    kept = cache_folder() / "digests" / hashlib.sha256(before.encode()).hexdigest()
    with suppress(OSError, ValueError):
        if len(known := bytes.fromhex(kept.read_text())) == hashlib.sha256().digest_size:
            return known
    digest = file_sha256(path)
    if before == _state(path) and time.time_ns() - path.stat().st_ctime_ns > RECENT:
        with suppress(OSError, DraftgaugeError):  # a cache that cannot be written costs the next call its time
            kept.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(kept, digest)
    return bytes.fromhex(digest)


def _state(path: Path) -> str:
    at = path.stat()
    return f"{path}\0{at.st_dev} {at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}"


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


def _files(folder: Path, texts: bool, sampled: bool) -> Iterator[tuple[str, int, bytes]]:
    names = (OPENVINO_GRAPH, OPENVINO_WEIGHTS) if is_openvino(folder) else ("*.safetensors",)
    weights = [path for name in names for path in sorted(folder.glob(name))]
    if not (folder / "config.json").is_file() or len(weights) < len(names):
        raise ModelError(f"{folder} lacks config.json or safetensors weights: is it the folder of a model?")
    index = [path for path in (folder / INDEX,) if path.is_file()]
    of_texts = sorted({path for pattern in _TEXTS for path in folder.glob(pattern) if path.is_file()}) if texts else []
    for path in (folder / "config.json", *weights, *index, *of_texts):
        yield path.name, *_sized(path, sampled)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, int, bytes | memoryview]]:
    config = model.config.to_json_string(use_diff=True)
    yield "config", len(config), config.encode()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            yield f"{name} {tuple(tensor.shape)} {tensor.dtype}", len(raw), raw.cpu().numpy().data
