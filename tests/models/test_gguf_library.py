"""A libllama is used only where its structures are laid out as declared: a flag at a wrong offset can abort."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from draftgauge.core.errors import MissingLibraryError
from draftgauge.models.engines import gguf_library
from draftgauge.models.engines.gguf_library import (
    CONTEXT_DEFAULTS,
    FUNCTIONS,
    MODEL_DEFAULTS,
    Batch,
    context_parameters,
    declare,
    libllama,
)


class Function:
    """A C function that returns these bytes as whatever was declared for its result."""

    restype: Any = None
    argtypes: Any = None

    def __init__(self, content: bytes = b"") -> None:
        self._content = content

    def __call__(self, *_: Any) -> Any:
        return self.restype.from_buffer_copy(self._content.ljust(1024, b"\0")) if self._content else None


def fake(unknown: int = 1, model: bytes = b"", context: bytes = b"", batch: bytes = b"") -> SimpleNamespace:
    """A libllama with so many fields before the flags of its context parameters, or with structures of other bytes."""
    word = ctypes.c_int32()
    arrays = {name: ctypes.pointer(kind()) for name, kind in (("token", ctypes.c_int32), ("logits", ctypes.c_int8))}
    filled = Batch(pos=ctypes.pointer(word), n_seq_id=ctypes.pointer(word), **arrays)
    filled.seq_id = ctypes.pointer(ctypes.pointer(word))
    functions = {name: Function() for name in (*FUNCTIONS, "llama_init_from_model")}
    functions["llama_model_default_params"] = Function(model or bytes(MODEL_DEFAULTS))
    defaults = context_parameters(unknown)(**CONTEXT_DEFAULTS)
    functions["llama_context_default_params"] = Function(context or bytes(defaults))
    functions["llama_batch_init"] = Function(batch or bytes(filled))
    return SimpleNamespace(**functions)


@pytest.mark.parametrize("unknown", [0, 1, 3])
def test_fields_before_the_flags_are_found(unknown: int) -> None:
    library = fake(unknown)
    declare(library)
    kind = library.llama_init_from_model.argtypes[1]
    assert kind.embeddings.offset == 128 + 8 * unknown  # by offsetof() on llama.h: 128 in 0.3.36, 136 in xllamacpp


def test_other_structures_are_refused() -> None:
    context = bytearray(bytes(context_parameters(1)(**CONTEXT_DEFAULTS)))
    context.insert(context_parameters(1).embeddings.offset, 1)  # a new flag in front of the others
    with pytest.raises(MissingLibraryError, match="llama_context_params"):
        declare(fake(context=bytes(context)))
    with pytest.raises(MissingLibraryError, match="llama_model_params"):
        declare(fake(model=bytes(8) + bytes(MODEL_DEFAULTS)))
    with pytest.raises(MissingLibraryError, match="llama_batch"):
        declare(fake(batch=bytes(ctypes.sizeof(Batch))))
    library = fake()
    del library.llama_memory_seq_cp
    with pytest.raises(AttributeError, match="seq_cp"):
        declare(library)


def test_a_library_that_is_refused_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "libllama.so").write_text("no library")
    monkeypatch.setattr(gguf_library, "_libraries", lambda: [tmp_path / "libllama.so"])
    with pytest.raises(MissingLibraryError, match=r"libllama\.so: .*pip install 'draftgauge\[gguf\]'"):
        libllama.__wrapped__()
