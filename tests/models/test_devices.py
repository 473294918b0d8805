"""Devices, memory and checkpoints that come quantised: loaded as asked for, or refused with what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError
from draftgauge.drafters.reuse import attention
from draftgauge.models import device
from draftgauge.models.device import choose_device, label_of, method_of, private
from draftgauge.models.engines import packing
from draftgauge.models.loading import engine_at, load_model
from draftgauge.pair.loading import labelled, load_pair
from draftgauge.requests import DeviceSpec, PairSpec
from tiny import edit, needs_bitsandbytes, save_tiny, tiny_model, tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", ["auto", "gpu", "cuda:x"])
def test_a_name_that_is_no_device(name: str) -> None:
    with pytest.raises(DraftgaugeError, match=f"no device '{name}': name cpu, cuda, cuda:1"):
        choose_device(name)


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DraftgaugeError, match="device meta is not there"):
        choose_device("meta")
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(DraftgaugeError, match="device cuda:2 is not there: torch sees 2"):
        choose_device("cuda:2")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("can't allocate memory: 9")]
)
def test_memory_that_runs_out_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(ModelError, match="bf16 does not fit into the memory of cpu"):
        load_model(folder, "bf16", "cpu")


def test_a_device_map_loads_and_contradictions_are_refused(folder: Path) -> None:
    spread = load_model(folder, device_map="auto")
    expected = load_model(folder, device="cpu")
    torch.testing.assert_close(spread.forward(tokens(5)), expected.forward(tokens(5)), rtol=1e-4, atol=2e-4)
    with pytest.raises(DraftgaugeError, match="unknown device_map 'even'"):
        load_model(folder, device_map="even")
    with pytest.raises(DraftgaugeError, match="leave out device cpu"):
        load_model(folder, device="cpu", device_map="auto")


def test_the_draft_has_a_device_of_its_own(folder: Path) -> None:
    assert load_pair(folder, folder, device="cpu").draft.spec.device == torch.device("cpu")
    with pytest.raises(DraftgaugeError, match="no device 'auto'"):
        load_pair(folder, folder, device="cpu", draft_device="auto")


NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bnb-int8"),
        ({"quantization_config": NF4}, "bnb-nf4"),
    ],
)
def test_the_method_of_a_checkpoint(config: dict, method: str | None) -> None:
    assert method_of(config) == method
    assert label_of("uncompressed", method, "it") == (method or "uncompressed")
    if method is not None:
        assert label_of(method, method, "it") == method
        with pytest.raises(DraftgaugeError, match=f"it comes quantised by {method} "):
            label_of("nf4", method, "it")


@needs_bitsandbytes
def test_a_checkpoint_that_comes_quantised_goes_by_its_method(folder: Path, tmp_path: Path) -> None:
    made = load_model(folder, "nf4", "cpu", engine="modules")
    made.module.save_pretrained(tmp_path)
    spec = PairSpec(target=str(tmp_path), drafter="prompt_lookup", machine=DeviceSpec(device="cpu"))
    assert labelled(spec).compression == ("bnb-nf4",)
    assert labelled(labelled(spec)) == labelled(spec)
    again = load_model(tmp_path, "bnb-nf4", "cpu")
    assert again.spec.engine == "lean"
    assert method_of(again.module.config.to_dict()) == "bnb-nf4"
    torch.testing.assert_close(again.forward(tokens(7)), made.forward(tokens(7)), rtol=2e-2, atol=2e-2)
    with pytest.raises(DraftgaugeError, match="comes quantised by bnb-nf4"):
        load_model(tmp_path, "bf16", "cpu")


def test_a_method_whose_library_is_missing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True})
    with pytest.raises((MissingLibraryError, ModelError), match=f"cannot load {tmp_path}"):
        load_model(tmp_path, "uncompressed", "cpu")


@pytest.mark.parametrize("method", ["fp8", "someday"])
def test_a_checkpoint_that_would_become_plain_weights(folder: Path, tmp_path: Path, method: str) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    edit(tmp_path, quantization_config={"quant_method": method})
    with pytest.raises(ModelError, match=f"quantised by {method}, which .* would be measured as plain float32"):
        load_model(tmp_path, "uncompressed", "cpu")


def test_an_int8_target_has_another_engine_on_a_gpu() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    found = [engine_at("static", "bf16", each, gpu) for each in ("fp16", "nf4", "int8")]
    assert (*found, engine_at("lean", "int8", "nf4", gpu)) == ("static", "static", "lean", "static")
    assert engine_at("lean", "bf16", "nf4", cpu) == "lean"


def test_what_pytorch_keeps_for_itself_is_done_without_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (private("ops.aten._no_such"), private("no.such")) == (None, None)
    assert private("ops.mkldnn._linear_pointwise") is not None
    queries, keys, values = torch.randn(3, 2, 5, 8)
    fused = attention.joint_attention(queries[None], (keys[None], values[None]), (), causal=True)
    for module in (packing, device, attention):
        monkeypatch.setattr(module, "private", lambda name: None)
    monkeypatch.setattr(attention, "FusedCausal", None)
    written_out = attention.joint_attention(queries[None], (keys[None], values[None]), (), causal=True)
    torch.testing.assert_close(written_out, fused)
    assert not packing.packs(tiny_model())
    assert not device.cpu_has_bfloat16.__wrapped__()
