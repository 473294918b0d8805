"""libllama through llama-cpp-python's ctypes: loading the library, opening files, reading vocabularies."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from draftgauge.core.errors import MissingLibraryError, ModelError
from draftgauge.models.vocabulary import difference

GGUF_SUFFIX = ".gguf"
INSTALL = "pip install 'draftgauge[gguf]'"
_ERROR_LEVEL = 4
_VALUE_BYTES = 256
_last_error = ""


def is_gguf(source: str | Path) -> bool:
    return str(source).endswith(GGUF_SUFFIX)


@cache
def libllama() -> Any:
    """The module of llama-cpp-python's low-level functions, its library loaded and quiet.

    Raises:
        MissingLibraryError: if it is not installed, its library cannot be loaded, or it is too old.
    """
    # libllama's threads would else spin between passes and take the cores from torch, which drafts or samples there.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import llama_cpp.llama_cpp as library
    except (ImportError, OSError, RuntimeError) as error:  # not installed, or without a library that loads here
        raise MissingLibraryError(f"GGUF files need llama-cpp-python ({error}): {INSTALL}") from error
    wanted = ("llama_memory_seq_rm", "llama_init_from_model", "llama_vocab_get_text")
    fields = {name for name, *_ in library.llama_context_params._fields_}
    if not all(hasattr(library, name) for name in wanted) or "kv_unified" not in fields:
        raise MissingLibraryError(f"this llama-cpp-python is too old, 0.3.36 or later is needed: {INSTALL}")
    library.llama_log_set(_log(library), None)
    library.llama_backend_init()
    return library


@cache
def _log(library: Any) -> Any:
    """Keeps the last error and prints nothing; kept itself, as C calls it for as long as the process runs."""

    @library.llama_log_callback
    def keep(level: int, text: bytes, _: Any) -> None:
        global _last_error
        if level == _ERROR_LEVEL:
            _last_error = text.decode(errors="replace").strip()

    return keep


def last_error() -> str:
    return _last_error


def open_model(path: Path, *, vocabulary_only: bool = False) -> Any:
    """A handle on a GGUF file, to be given to ``llama_model_free``."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}: give a GGUF file")
    library = libllama()
    parameters = library.llama_model_default_params()
    parameters.n_gpu_layers = 0
    parameters.vocab_only = vocabulary_only
    parameters.use_extra_bufts = False  # repacked weights: other sums, and q8_0 crashes with them on AMX machines
    model = library.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise ModelError(f"cannot load {path}: {last_error() or 'libllama does not say why'}")
    return model


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The vocabulary and the metadata of a GGUF file, without its weights."""
    model = open_model(path, vocabulary_only=True)
    try:
        yield model
    finally:
        libllama().llama_model_free(model)


def metadata(model: Any, key: str) -> str:
    """A value of a file's metadata as text; empty if it has none."""
    value = ctypes.create_string_buffer(_VALUE_BYTES)
    length = libllama().llama_model_meta_val_str(model, key.encode(), value, _VALUE_BYTES)
    return value.value.decode(errors="replace") if length >= 0 else ""


def end_tokens_of(model: Any) -> list[int]:
    library = libllama()
    vocabulary = library.llama_model_get_vocab(model)
    return [i for i in range(library.llama_vocab_n_tokens(vocabulary)) if library.llama_vocab_is_eog(vocabulary, i)]


def check_gguf_vocabulary(tokenizer: PreTrainedTokenizerBase, path: Path, role: str) -> None:
    """Refuse a file whose token ids do not mean what the tokenizer's do; ids that only the file has are padding.

    ``role`` is the file's model in the message, "target" or "draft".
    """
    library = libllama()
    with opened(path) as model:
        vocabulary = library.llama_model_get_vocab(model)
        count = library.llama_vocab_n_tokens(vocabulary)
        theirs = {i: library.llama_vocab_get_text(vocabulary, i).decode(errors="replace") for i in range(count)}
    ours = {index: token for token, index in tokenizer.get_vocab().items()}
    differing = sorted(index for index, token in ours.items() if theirs.get(index) != token)
    if differing:
        raise ModelError(
            f"{path} has another vocabulary than the tokenizer ({len(differing)} ids differ: "
            f"{difference(differing, ours, theirs, ('the tokenizer', f'the {role}'))}): give the file's own tokenizer "
            "with --tokenizer, or a file converted from a model of this one"
        )
