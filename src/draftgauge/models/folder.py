"""Where a model lies and what its files are, checked before they are read; one translation of what loading raises.

Which model it was is a hash of its configuration and of all its weights, kept for files that have not changed. The
bundled pair is a trained target and two drafts of one vocabulary.

What runs no model asks for names alone, so torch and transformers are imported where they are needed.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftgauge.core.artefacts import read_json
from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError, is_out_of_memory, meant
from draftgauge.core.files import atomic_write_text, cache_folder, file_sha256

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GGUF_SUFFIX = ".gguf"
OPENVINO_GRAPH, OPENVINO_WEIGHTS = "openvino_model.xml", "openvino_model.bin"
OPENVINO_IMAGES = "openvino_language_model.xml"  # of a model that sees images, beside its other parts
REFERENCE = "reference"
PARTS = ("target", "draft", "draft-small")
BUNDLED = (REFERENCE, *(f"{REFERENCE}/{part}" for part in PARTS))
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


def resolve_draft(source: str) -> str:
    """The same of what drafts, for engines that do not know the bundled pair: there ``reference`` is its draft."""
    return str(resolve_source(f"{REFERENCE}/draft" if source == REFERENCE else source))


WORDS = (REFERENCE, "lookup")  # where the name of a model may stand
INDEX = "model.safetensors.index.json"
# How the names of MTP tensors begin, of any family.
OF_MTP = re.compile(r"(.*\.)?(mtp(_\w+)?\.|(?=(enorm|hnorm|eh_proj|e_proj|h_proj|shared_head)\.))")
_MODEL_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")  # a model's or tokenizer's folder has one
_POINTER = b"version https://git-lfs"
_OBJECTS = "text_config transformer_layer_config dflash_config eagle_config rope_parameters rope_scaling verifier"
_TYPES: dict[str, tuple[tuple[str, ...], Callable[[Any], bool]]] = {
    "a list of names": (("architectures", "layer_types"), lambda v: type(v) is list and all(type(n) is str for n in v)),
    "an object of settings": ((*_OBJECTS.split(), "speculators_config"), lambda value: isinstance(value, Mapping)),
    "a name": (("model_type", "speculators_model_type", "hidden_act"), lambda value: isinstance(value, str)),
}
_READ_FILES = ("*.json", "*.safetensors", "*.model", "*.jinja")


def model_folder(source: str | Path) -> str | Path:
    """The folder or hub id of a model."""
    source = resolve_source(source)
    looks_local = isinstance(source, Path) or source.startswith((".", "/", "~")) or source.count("/") > 1
    folder = Path(source)
    if not folder.is_dir():
        if folder.is_file():
            hint = "give a folder as save_pretrained writes it; of a GGUF file the one that it was converted from"
            raise ModelError(f"{source} is a file, no model folder: {hint}")
        if looks_local:
            hint = "give the folder that save_pretrained wrote, or a model id of the hub"
            raise ModelError(f"there is no model folder {source}: {hint}")
        if "/" not in str(source):
            raise ModelError(
                f"{source} is no folder here; {meant(source, WORDS)}a model of the hub is named owner/name"
            )
        return source
    kind = other_kind(folder)
    if kind is not None:
        raise ModelError(f"{source} is {kind}")
    if not any((folder / name).is_file() for name in _MODEL_FILES):
        raise ModelError(f"{source} is not a model folder, it has no config.json")
    check_pointers(folder)
    return source


def check_pointers(folder: Path) -> None:
    for path in (path for pattern in _READ_FILES for path in sorted(folder.glob(pattern)) if path.is_file()):
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
        if start == _POINTER:
            raise ModelError(
                f"{path} is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull` in {folder}"
            )


def other_kind(folder: Path) -> str | None:
    """What a folder is that is no language model's, and what to do with it; None where it may be one."""
    if (folder / "drafter.json").is_file():
        return "a trained drafter: give it as --drafter"
    if (folder / "manifest.json").is_file() and not (folder / "config.json").is_file():
        return "a recorded run: give the model that it was recorded with"
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        base = read_mapping(folder / "adapter_config.json").get("base_model_name_or_path")
        return (
            f"an adapter (LoRA or the like) of {base}, not a whole model: merge the two (peft's merge_and_unload, "
            "then save_pretrained) and give that folder"
        )
    if (folder / "config.json").is_file() and is_drafter_checkpoint(read_settings(folder / "config.json")):
        return "a drafter of hidden states (EAGLE, DFlash or the like), no language model: give it as --drafter"
    return None


def is_drafter_checkpoint(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` is of a drafter for serving engines: EAGLE, DFlash, DSpark or of speculators."""
    architectures = config.get("architectures")
    names = " ".join(map(str, architectures)).lower() if isinstance(architectures, list) else ""
    return (
        any(name in names for name in ("eagle", "dflash", "dspark"))
        or "draft_vocab_size" in config
        or "speculators_model_type" in config
    )


def check_index(source: str | Path) -> None:
    """Refuse an index that names anything but safetensors of its folder: to read pickled weights can run code."""
    from transformers.utils import cached_file

    found = cached_file(
        str(source),
        INDEX,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if found is None:
        return
    weight_map = read_mapping(Path(found)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{found} is damaged: its weight_map must name a file for each weight; copy the model again")
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(
                f"{found} names {name!r}: only safetensors files of the model's own folder are read. Convert the model "
                "with save_pretrained"
            )
        if Path(source).is_dir() and not (Path(source) / name).is_file():
            raise ModelError(f"{source} lacks {name}, which {INDEX} names: copy or download the rest of the model")


@contextmanager
def explained(source: str | Path) -> Iterator[None]:
    """Whatever libraries raise for a model's files inside the block becomes an error that says what to do.

    Errors of memory that ran out stay as they are.
    """
    try:
        yield
    except DraftgaugeError:
        raise
    except ImportError as error:
        raise MissingLibraryError(f"cannot load {source}: {' '.join(str(error).split())}") from error
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(f"cannot load {source}: {_advice(error)}") from error


def read_mapping(path: Path, remedy: str = "copy the model again") -> dict[str, Any]:
    value = read_json(path, "file", remedy, ModelError)
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: it must hold a JSON object, not {type(value).__name__}; {remedy}")
    return value


def read_settings(path: Path, remedy: str = "copy the model again") -> dict[str, Any]:
    """A ``config.json``, its types checked."""
    settings = read_mapping(path, remedy)
    check_types(settings, path)
    return settings


def check_types(settings: Mapping[str, Any], where: str | Path) -> None:
    """Refuse settings, at any depth, that are no lists of names, no objects or no text where such belong."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            check_types(value, where)
        for wanted, (names, fits) in _TYPES.items():
            if name in names and value is not None and not fits(value):
                raise ModelError(f"{where}: {name} must be {wanted}, not {value!r}: is config.json whole?")


def _advice(error: Exception) -> str:
    """What a library says, with what to do where it does not say it."""
    text = " ".join(str(error).split())
    if "connect to 'https" in text or "cached snapshot" in text:
        return "there is no such folder here, and the model hub cannot be reached: check the name, or the connection"
    if "trust_remote_code" in text:
        return (
            "it comes with Python code of its own, which runs only where trust_remote_code is asked for; "
            "read that code first"
        )
    if "no file named" in text and "safetensors" in text:
        return f"only safetensors weights are read, and it has none ({text}); convert it with save_pretrained"
    if isinstance(error, OSError | ValueError) and text:
        return text
    return (
        f"transformers cannot read its files, which are damaged or of another version ({type(error).__name__}: {text})"
    )


def is_gguf(source: str | Path) -> bool:
    return str(source).endswith(GGUF_SUFFIX)


def is_openvino(source: str | Path) -> bool:
    """Whether a folder holds an exported model, or a part of one, and no weights of transformers."""
    folder = Path(source)
    names = (OPENVINO_GRAPH, OPENVINO_WEIGHTS, OPENVINO_IMAGES)
    return any((folder / name).is_file() for name in names) and not any(folder.glob("*.safetensors"))


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
    if not isinstance(model, str | Path):
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
    from transformers.utils import cached_file

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
    import torch

    config = model.config.to_json_string(use_diff=True)
    yield "config", len(config), config.encode()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor):
            raw = tensor.detach().contiguous().flatten().view(torch.uint8)
            yield f"{name} {tuple(tensor.shape)} {tensor.dtype}", len(raw), raw.cpu().numpy().data
