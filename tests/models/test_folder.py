"""Foreign and damaged model folders: what they are is said, and what to do; pickled weights are never read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftgauge.core.errors import ModelError
from draftgauge.drafters.base import choose_drafter
from draftgauge.models.folder import INDEX, fingerprint
from draftgauge.models.loading import load_model, load_tokenizer
from tiny import save_tiny

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model", "llama", chat=True)


def edit(folder: Path, **changes: Any) -> None:
    """Change settings of a ``config.json``; ``...`` leaves one out."""
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


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
