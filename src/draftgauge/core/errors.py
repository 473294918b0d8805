"""Errors that users see: what was wrong and what to do about it. The command line prints them and exits with code 2."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TypeVar

Name = TypeVar("Name")


class DraftgaugeError(ValueError):
    """Something the user can put right: a bad argument, file, model pair or folder."""


class MissingLibraryError(DraftgaugeError):
    """An optional library that a chosen option needs is not installed."""


EXTRAS = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "accelerate"), "models"),
    **{"matplotlib": "report", "ray": "study", "bitsandbytes": "quant", "tensorboard": "track"},
    **dict.fromkeys(("xllamacpp", "gguf"), "gguf"),
    "openvino": "openvino",
}  # of optional libraries


def missing_library(name: str | None) -> MissingLibraryError | None:
    """What to install where a module of this name cannot be imported; None if it is of no extra."""
    library = (name or "").partition(".")[0]
    if library not in EXTRAS:
        return None
    return MissingLibraryError(
        f"this needs {library}, which is not installed: pip install 'draftgauge[{EXTRAS[library]}]'"
    )


class ConfigError(DraftgaugeError):
    """Keys and values that are not those of what they describe."""


class TraceError(DraftgaugeError):
    """A trace that cannot be read, belongs to another run, or lacks what was asked of it."""


class PromptError(DraftgaugeError):
    """A prompt file, or a line of one, that cannot be used."""


class ModelError(DraftgaugeError):
    """A model that cannot be loaded, or a draft and target that do not fit together."""


class DivergenceError(DraftgaugeError):
    """A training whose loss is no finite number any more."""


def meant(name: object, known: Iterable[str]) -> str:
    """The known name that one may have been meant for, as a question; empty if none is alike."""
    return "".join(f"did you mean {alike}? " for alike in get_close_matches(str(name), list(known), 1))


def misread(error: Exception) -> str:
    """In words, why JSON of another program could not be read: what it lacks, or what is wrong in it."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) if isinstance(error, ValueError) else "it has another layout"


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """A Python warning that points at the caller's code: at the first frame outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "draftgauge":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, which need not be imported here
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


@contextmanager
def left_out(name: Name, failed: dict[Name, str]) -> Iterator[None]:
    """One of several that users can put right, or that memory does not hold, is left out with a warning and noted."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, DraftgaugeError) and not is_out_of_memory(error):
            raise
        failed[name] = str(error)
        warn(f"{name} is left out: {error}")
