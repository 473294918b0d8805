"""A libllama is used only where its structures are as declared; files that cannot be run are refused in words."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import draftgauge
from draftgauge.core.errors import MissingLibraryError, ModelError
from draftgauge.drafters.dense import draft_densely
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
from draftgauge.models.folder import fingerprint
from draftgauge.models.loading import load_model, load_tokenizer, wrap
from tiny import save_tiny, tiny_model, tokens


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


def test_a_build_with_kernels_beside_it_goes_before_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen, package, server = (tmp_path / name for name in ("chosen", "package", "system/bin"))
    for folder, *names in (
        (chosen, "libllama.v0.5.0.so", "libllama-common.so"),
        (package, "xllamacpp.abi3.so"),
        (server, "llama-server", "libllama.so", "libggml-cpu-zen4.so"),
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text("")
            (folder / name).chmod(0o755)
    found = {"xllamacpp": SimpleNamespace(submodule_search_locations=[str(package)])}
    monkeypatch.setattr(gguf_library, "find_spec", found.get)
    monkeypatch.setenv("PATH", str(server))
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    assert gguf_library._libraries() == [server / "libllama.so", package / "xllamacpp.abi3.so"]
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(chosen))
    assert gguf_library._libraries()[0] == chosen / "libllama.v0.5.0.so"


def test_kernels_beside_a_library_are_loaded_and_threads_wait_as_the_machine_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libggml-cpu-haswell.so").write_text("")
    library, loaded = fake(), list[bytes]()
    library.ggml_backend_load_all_from_path = loaded.append
    monkeypatch.setattr(gguf_library, "_libraries", lambda: [tmp_path / "libllama.so"])
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    for others, waits in ((0.1, {"GOMP_SPINCOUNT": "20000"}), (1.5, {"OMP_WAIT_POLICY": "passive"})):
        monkeypatch.setattr(gguf_library, "machine_load", lambda others=others: {"other_cores": others, "cores": 2})
        monkeypatch.setattr(gguf_library.os, "environ", environment := dict[str, str]())
        assert libllama.__wrapped__() is library
        assert environment == waits
    assert loaded == 2 * [str(tmp_path).encode()]


def test_instruction_sets_that_lie_idle_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = b"CPU : AVX = 1 | AVX2 = 1 | AVX512 = 0 | FMA = 1 | LLAMAFILE = 1 | REPACK = 1 | "
    monkeypatch.setattr(gguf_library, "libllama", lambda: SimpleNamespace(llama_print_system_info=lambda: said))
    monkeypatch.setattr(gguf_library, "processor_sets", lambda: ["AVX2", "AVX512", "AVX512_BF16"])
    with pytest.warns(UserWarning, match="leaves AVX512, AVX512_BF16 of the processor unused.*LLAMA_CPP_LIB_PATH"):
        assert gguf_library.instruction_sets.__wrapped__() == ("AVX", "AVX2", "FMA")


def test_weights_are_not_repacked_where_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"q8_0.gguf": "7", "q4_k_m.gguf": "15"}
    monkeypatch.setattr(gguf_library, "open_model", lambda path, vocabulary_only: path)
    monkeypatch.setattr(gguf_library, "metadata", lambda path, key: kinds[path.name])
    monkeypatch.setattr(gguf_library, "libllama", lambda: SimpleNamespace(llama_model_free=lambda path: None))
    for sets, repacked in ((("AVX2",), [True, True]), (("AVX2", "AMX_INT8"), [False, True])):
        monkeypatch.setattr(gguf_library, "instruction_sets", lambda sets=sets: sets)
        assert [gguf_library.can_repack(Path(name)) for name in kinds] == repacked


def test_a_library_that_is_refused_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "libllama.so").write_text("no library")
    monkeypatch.setattr(gguf_library, "_libraries", lambda: [tmp_path / "libllama.so"])
    with pytest.raises(MissingLibraryError, match=r"libllama\.so: .*pip install 'draftgauge\[gguf\]'"):
        libllama.__wrapped__()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gguf_library, "_libraries", list)
    libllama.cache_clear()
    yield
    libllama.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model-Q4_K_M.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_options_that_do_not_fit_a_file(file: Path, tmp_path: Path) -> None:
    for options, message in (
        ({"compression": "int8"}, "has its compression"),
        ({"device": "cuda"}, "runs on the CPU"),
        ({"engine": "lean"}, "gguf and gguf-fast run"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(file, **options)
    with pytest.raises(ModelError, match="there is no file"):
        load_model(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="there is no file"):
        load_tokenizer(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match=r"end in \.gguf"):
        load_model(save_tiny(tmp_path / "folder"), engine="gguf")


@pytest.mark.usefixtures("no_library")
def test_without_libllama_it_is_said_what_to_install(file: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingLibraryError, match=r"pip install 'draftgauge\[gguf\]'"):
        load_model(file)
    folder = str(save_tiny(tmp_path / "tokenizer"))
    result = draftgauge(["generate", "x", "--target", str(file), "--drafter", str(file), "--tokenizer", folder])
    assert result.exit_code == 2
    assert "pip install 'draftgauge[gguf]'" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_file_is_known_by_its_content(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"GGUF")
    assert fingerprint(file) == fingerprint(copy)
    copy.write_bytes(b"GGUG")
    assert fingerprint(file) != fingerprint(copy)


def test_an_engine_with_few_branches_drafts_the_same() -> None:
    prompt, output = tokens(9).tolist(), tokens(30, seed=1).tolist()
    whole = draft_densely(wrap(tiny_model(seed=3)), prompt, output, 4)
    model = wrap(tiny_model(seed=3))
    model.spec = replace(model.spec, branches=3)
    parts = draft_densely(model, prompt, output, 4)
    assert (parts.tokens == whole.tokens).all()
