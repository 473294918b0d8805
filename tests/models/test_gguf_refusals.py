"""What is said of GGUF files that cannot be run, and branches in parts, with or without llama.cpp installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import draftgauge
from draftgauge.core.errors import MissingLibraryError, ModelError
from draftgauge.drafters.dense import draft_densely
from draftgauge.models.engines import gguf_library
from draftgauge.models.engines.gguf_library import libllama
from draftgauge.models.folder import fingerprint
from draftgauge.models.loading import load_model, load_tokenizer, wrap
from tiny import save_tiny, tiny_model, tokens


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
