"""Where a model lies and what its files are, checked before they are read; one translation of what loading raises.

The bundled pair is a trained target and two drafts of one vocabulary.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftgauge.core.artefacts import read_json
from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError, is_out_of_memory, meant

GGUF_SUFFIX = ".gguf"
OPENVINO_GRAPH, OPENVINO_WEIGHTS = "openvino_model.xml", "openvino_model.bin"
OPENVINO_IMAGES = "openvino_language_model.xml"  # of a model that sees images, beside its other parts
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


WORDS = (REFERENCE, "lookup")  # where the name of a model may stand
INDEX = "model.safetensors.index.json"
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
            raise ModelError(
                f"{source} is a file, no model folder: give the folder that it was converted from, as a GGUF file "
                "cannot be trained on, nor read by transformers"
            )
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
    from transformers.utils import cached_file  # not above: what runs no model asks for names alone

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
