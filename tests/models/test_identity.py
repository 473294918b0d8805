"""Which model, which vocabulary, which end, which prompt."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftgauge.core.errors import ModelError
from draftgauge.core.files import file_sha256
from draftgauge.models import folder as files
from draftgauge.models.folder import fingerprint
from draftgauge.models.loading import wrap
from draftgauge.models.tokenizer import check_same_vocabulary, end_tokens
from models.test_folder import edit
from tiny import save_tiny, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("whole", [1 << 20, 64])
def test_a_fingerprint_is_of_the_model_and_not_of_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(files, "WHOLE", whole)  # up to it files are hashed whole, above at their ends
    monkeypatch.setattr(files, "EDGE", 32)
    first = save_tiny(tmp_path / "first")
    copy = Path(shutil.copytree(first, tmp_path / "copy"))
    other = save_tiny(tmp_path / "other", seed=1)
    assert len(fingerprint(first)) == 64
    assert fingerprint(first) == fingerprint(str(copy)) != fingerprint(other)
    edit(copy, max_position_embeddings=64)
    assert fingerprint(first) != fingerprint(copy)


def test_a_model_with_the_ends_of_its_base_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, length in (("WHOLE", 64), ("EDGE", 32), ("PIECE", 16)):
        monkeypatch.setattr(files, name, length)
    base = save_tiny(tmp_path / "base")
    tuned = Path(shutil.copytree(base, tmp_path / "tuned"))
    content = bytearray((base / "model.safetensors").read_bytes())
    quarter = len(content) // 4
    content[quarter : 2 * quarter] = bytes(255 - byte for byte in content[quarter : 2 * quarter])
    (tuned / "model.safetensors").write_bytes(content)
    assert fingerprint(base) != fingerprint(tuned)
    content = bytearray((base / "model.safetensors").read_bytes())
    content[len(content) // 4 + 40] ^= 1  # one bit between the pieces that earlier versions looked at
    before, sampled = fingerprint(base), fingerprint(base, sampled=True)
    (base / "model.safetensors").write_bytes(content)
    assert fingerprint(base) != before
    assert fingerprint(base, sampled=True) == sampled
    assert files.was_sampled(sampled, base)
    assert not files.was_sampled(before, base)


def test_a_digest_is_kept_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WHOLE", 64)
    monkeypatch.setattr(files, "RECENT", -1)
    monkeypatch.setenv("DRAFTGAUGE_CACHE", str(tmp_path / "cache"))
    model, read = save_tiny(tmp_path / "model"), []
    monkeypatch.setattr(files, "file_sha256", lambda path: read.append(path.name) or file_sha256(path))
    assert fingerprint(model) == fingerprint(model)
    assert read.count("model.safetensors") == 1
    weights = model / "model.safetensors"
    kept = weights.stat()
    time.sleep(0.02)  # more than the clock of a file's times
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    os.utime(weights, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    fingerprint(model)
    assert read.count("model.safetensors") == 2


def test_a_fingerprint_of_a_model_in_memory() -> None:
    first = fingerprint(tiny_model())
    assert first == fingerprint(tiny_model())
    assert len({first, fingerprint(tiny_model(seed=1)), fingerprint(tiny_model(max_position_embeddings=64))}) == 3


def test_a_fingerprint_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"lacks config\.json"):
        fingerprint(tmp_path)
    with pytest.raises(ModelError, match="cannot find the files of nobody/nothing"):
        fingerprint("nobody/nothing")


def test_equal_vocabularies_pass_and_others_are_told_apart() -> None:
    check_same_vocabulary(tiny_tokenizer(), tiny_tokenizer(chat=True))
    swapped = "2 ids differ: 66 is 'a' to the target, 'b' to the draft; 67 is 'b' to the target, 'a' to the draft"
    smaller = r"96 and 94 tokens, 2 ids differ: 94 is '}' to the target, nothing to the draft"
    for draft, message in ((tiny_tokenizer(swap=(66, 67)), swapped), (tiny_tokenizer(94), smaller)):
        with pytest.raises(ModelError, match=message):
            check_same_vocabulary(tiny_tokenizer(), draft)


def test_end_tokens_are_gathered_from_everywhere() -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = [3, 5]
    assert end_tokens(model) == {0, 3, 5}
    assert end_tokens(wrap(model)) == {0, 3, 5}
    assert end_tokens(model.config, SimpleNamespace(eos_token_id=9)) == {0, 9}
    assert end_tokens(tiny_tokenizer()) == {0}
    assert end_tokens(SimpleNamespace(eos_token_id=None)) == frozenset()
    with pytest.raises(ModelError, match="eos_token_id must be a token id or a list"):
        end_tokens(SimpleNamespace(eos_token_id=1e308))
