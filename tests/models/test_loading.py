"""Model folders: loaded, told apart, or refused with what to do; pickled weights are never read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, Gemma2PreTrainedModel

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import file_sha256
from draftgauge.drafters.base import choose_drafter
from draftgauge.models import folder as files
from draftgauge.models import loading
from draftgauge.models.folder import INDEX, PARTS, fingerprint, reference_path, resolve_source
from draftgauge.models.loading import OWN_ENGINES, load_model, load_tokenizer, wrap
from draftgauge.models.tokenizer import check_same_vocabulary, end_tokens
from tiny import edit, save_tiny, tiny_model, tiny_tokenizer, tokens


@pytest.fixture
def chat_folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model", chat=True)


@pytest.mark.parametrize("engine", ["auto", *OWN_ENGINES])
def test_a_folder_loads_with_its_weights(chat_folder: Path, engine: str) -> None:
    cached = load_model(str(chat_folder), device="cpu", engine=engine)
    assert cached.spec.engine == ("lean" if engine == "auto" else engine)
    assert cached.length == 0
    with torch.no_grad():
        expected = tiny_model()(tokens(5)[None]).logits[0]
    torch.testing.assert_close(cached.forward(tokens(5)), expected, rtol=1e-4, atol=2e-4)


def test_other_architectures_take_the_modules(tmp_path: Path) -> None:
    assert load_model(save_tiny(tmp_path, "stablelm"), device="cpu").spec.engine == "modules"


def test_a_type_that_writes_no_text_is_named(tmp_path: Path) -> None:
    CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"of the type clip, for which transformers has no language model.{,120}$"):
        load_model(tmp_path)


def test_an_error_of_our_own_is_not_blamed_on_the_files(chat_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(loading, "wrap", fail)
    with pytest.raises(KeyError, match="a mistake"):
        load_model(chat_folder)


def test_bounded_scores_are_bounded_by_every_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where transformers chooses PyTorch's kernels for Gemma 2, as it does before 5.21."""
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    chat_folder = save_tiny(tmp_path, "gemma2", attn_logit_softcapping=0.5)
    lean, modules = (
        load_model(chat_folder, device="cpu", engine=engine).forward(tokens(20)) for engine in ("lean", "modules")
    )
    torch.testing.assert_close(lean, modules, rtol=1e-4, atol=2e-4)


def test_a_folder_without_a_tokenizer_says_so(chat_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(chat_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "special*", "vocab*"))
    with pytest.raises(
        ModelError, match=r"holds no tokenizer: copy tokenizer\.json .* there \(or --tokenizer FOLDER\)"
    ):
        load_tokenizer(tmp_path / "bare")
    with pytest.raises(ModelError, match=r"there$"):
        load_tokenizer(tmp_path / "bare", role="draft")


def test_unknown_engine(chat_folder: Path) -> None:
    with pytest.raises(DraftgaugeError, match=r"'fast'.*auto, lean, static, modules"):
        load_model(chat_folder, engine="fast")


@pytest.mark.parametrize(
    "source", [Path("no/such"), "/no/such/model", "./missing", "a/b/c", __file__, "nobody/nothing"]
)
@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_what_is_no_folder_and_cannot_be_fetched(load, source: str | Path) -> None:
    said = "cannot load nobody/nothing: " if source == "nobody/nothing" else "no model folder.*: give (the|a) folder"
    with pytest.raises(ModelError, match=said):
        load(source)


def test_weights_that_are_truncated_or_not_safetensors_are_not_read(chat_folder: Path) -> None:
    weights = chat_folder / "model.safetensors"
    torch.save(load_file(weights), chat_folder / "pytorch_model.bin")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot load"):
        load_model(chat_folder, device="cpu")
    weights.unlink()
    with pytest.raises(ModelError, match="only safetensors weights are read"):
        load_model(chat_folder, device="cpu")


def test_tensors_that_a_model_lacks_or_does_not_use_are_named(chat_folder: Path, caplog: Any) -> None:
    weights, name, one = chat_folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight", torch.ones(1)
    tensors = load_file(weights)

    def load(**changed: Any) -> None:
        save_file({n: t for n, t in (tensors | changed).items() if t is not None}, weights, {"format": "pt"})
        load_model(chat_folder, device="cpu")

    with pytest.raises(ModelError, match=f"no weights for {name}"):  # they are not filled at random
        load(**{name: None})
    with pytest.raises(ModelError, match=rf"{name} as \[1\], and its config.json makes it \[\d+, \d+\]"):
        load(**{name: one})
    with pytest.warns(UserWarning, match=r"a \w+ does not use 1 of the tensors of .*, as model.layers.0.lora.weight"):
        load(**{"model.layers.0.lora.weight": one})
    load(**{f"model.{head}.weight": one + 1 for head in ("layers.2.eh_proj", "layers.2.mlp.up_proj", "mtp_layers.0.a")})
    assert not [record for record in caplog.records if "REPORT" in record.getMessage()]


def test_code_that_comes_with_a_model_does_not_run_unless_asked_for(chat_folder: Path, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    (chat_folder / "custom.py").write_text(f"from pathlib import Path\nPath({str(trap)!r}).touch()\n")
    auto_map = {"AutoConfig": "custom.C", "AutoModelForCausalLM": "custom.M"}
    edit(chat_folder, model_type="custom", auto_map=auto_map)
    with pytest.raises(ModelError, match="runs only where trust_remote_code is asked for"):
        load_model(chat_folder, device="cpu")
    assert not trap.exists()


def test_the_bundled_pair_by_name(tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / part).mkdir()
        with pytest.raises(ModelError, match="reinstall draftgauge"):
            reference_path(part, tmp_path)
        (tmp_path / part / "model.safetensors").touch()
        assert reference_path(part, tmp_path) == tmp_path / part
    with pytest.raises(ModelError, match=r"no part 'teacher'.*target, draft"):
        resolve_source("reference/teacher")
    assert resolve_source("some/model") == "some/model"


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model", "llama", chat=True)


def shard(folder: Path, weight_map: Callable[[str], str]) -> None:
    """Put the weights under another name, and an index that names a file for each."""
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    index = {"metadata": {}, "weight_map": {name: weight_map(name) for name in names}}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 4160},
        {"hidden_size": "x"},
        {"hidden_act": "swiglu"},
        {"rope_parameters": {"rope_type": "x", "rope_theta": 1.0}},
        {"num_attention_heads": 3},
        {"pad_token_id": 5000},
        {"dtype": "torch.bfloat16"},
        {"layer_types": ["full_attention"]},
        {"quantization_config": [1]},
        {"quantization_config": {"quant_method": "unheard-of"}},
    ],
    ids=str,
)
def test_a_damaged_configuration_is_one_message(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder, **changes)
    with pytest.raises(ModelError, match=str(folder)):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("content", ["null", "[]", "{", '{"a": ' * 200])
@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_files_that_hold_no_object_are_named(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("settings", ["null", '{"model_max_length": [1]}'])
def test_damaged_settings_of_a_tokenizer(folder: Path, settings: str) -> None:
    (folder / "tokenizer_config.json").write_text(settings)
    with pytest.raises(ModelError, match="cannot load"):
        load_tokenizer(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_pointers_of_git_lfs_are_recognised(folder: Path, name: str) -> None:
    (folder / name).write_text(POINTER)
    with pytest.raises(ModelError, match=rf"{name} is a pointer of Git LFS, .*git lfs pull"):
        load_tokenizer(folder)


def test_an_adapter_is_to_be_merged(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
    with pytest.raises(ModelError, match=r"an adapter .* of some/base.* merge"):
        load_model(tmp_path)


@pytest.mark.parametrize("changes", [{"draft_vocab_size": 64}, {"architectures": ["LlamaForCausalLMEagle3"]}])
def test_a_drafter_of_serving_engines_is_not_a_draft_model(folder: Path, changes: dict[str, Any]) -> None:
    edit(folder, **changes)
    for load in (load_model, load_tokenizer):
        with pytest.raises(ModelError, match=r"is a drafter of hidden states .*: give it as --drafter"):
            load(folder)
    assert choose_drafter(folder) == ("checkpoint", folder)


@pytest.mark.parametrize("name", ["weights.bin", "../outside.safetensors", "/etc/passwd", "sub/a.safetensors"])
def test_an_index_names_safetensors_of_its_folder_only(folder: Path, name: str) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "weights.bin")
    shard(folder, lambda weight: name)
    with pytest.raises(ModelError, match=f"names '{name}': only safetensors files of the model's own folder"):
        load_model(folder, device="cpu")


def test_weights_in_shards_load_and_a_missing_one_is_named(folder: Path) -> None:
    save_file({"x": torch.zeros(1)}, folder / "part-2.safetensors", {"format": "pt"})
    shard(folder, lambda weight: "part-1.safetensors")
    load_model(folder, device="cpu")
    before = fingerprint(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "part-3.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    assert fingerprint(folder) != before
    with pytest.raises(ModelError, match=r"lacks part-3\.safetensors"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_what_decides_the_texts_is_in_the_fingerprint_but_not_in_that_of_the_weights(folder: Path, name: str) -> None:
    whole, weights = fingerprint(folder), fingerprint(folder, texts=False)
    (folder / name).write_text((folder / name).read_text() + " ")
    assert fingerprint(folder) != whole
    assert fingerprint(folder, texts=False) == weights


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
