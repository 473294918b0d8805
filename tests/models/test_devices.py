"""Devices, memory and checkpoints that come quantised: loaded as asked for, or refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftgauge.api.pair import labelled, load_pair
from draftgauge.api.requests import DeviceSpec, LoadSpec, PairSpec
from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError
from draftgauge.meter.steps import Stopwatch
from draftgauge.models import compression, device, loading
from draftgauge.models.compression import label_of, method_of
from draftgauge.models.device import choose_device, generator_on
from draftgauge.models.loading import load_model
from tiny import save_tiny, tokens

needs_bitsandbytes = pytest.mark.skipif(
    bool(compression.missing_libraries("int8")), reason="bitsandbytes or accelerate is not installed"
)


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


def test_memory_that_pytorch_holds_and_does_not_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("mem_get_info", (100, 1000)), ("memory_reserved", 700), ("memory_allocated", 650)):
        monkeypatch.setattr(device.torch.cuda, name, lambda _, value=value: value)
    assert device.free_bytes(torch.device("cuda")) == 150


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("can't allocate memory: 9")]
)
def test_memory_that_runs_out_while_loading(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelError, match="bf16 does not fit into the memory of cpu"):
        load_model(folder, "bf16", "cpu")


def test_fp32_is_float32_on_any_device(folder: Path) -> None:
    assert compression.activation_dtype("fp32", torch.device("cuda")) == torch.float32
    assert compression.draft_compression("fp32") == "fp32"
    assert load_model(folder, "fp32", "cpu").spec.dtype == torch.float32


def test_a_device_map_loads_and_contradictions_are_refused(folder: Path) -> None:
    spread = load_model(folder, device_map="auto")
    expected = load_model(folder, device="cpu")
    torch.testing.assert_close(spread.forward(tokens(5)), expected.forward(tokens(5)), rtol=1e-4, atol=2e-4)
    with pytest.raises(DraftgaugeError, match="unknown device_map 'even'"):
        load_model(folder, device_map="even")
    with pytest.raises(DraftgaugeError, match="leave out device cpu"):
        load_model(folder, device="cpu", device_map="auto")


def test_the_draft_has_a_device_of_its_own(folder: Path) -> None:
    spec = PairSpec(target=str(folder), draft=str(folder), machine=DeviceSpec(device="cpu"))
    assert load_pair(spec).draft.spec.device == torch.device("cpu")
    elsewhere = PairSpec(
        target=str(folder), draft=str(folder), machine=DeviceSpec(device="cpu"), loading=LoadSpec(draft_device="auto")
    )
    with pytest.raises(DraftgaugeError, match="no device 'auto'"):
        load_pair(elsewhere)


def test_a_generator_stays_where_it_belongs() -> None:
    generator = torch.Generator().manual_seed(1)
    assert generator_on(generator, torch.device("cpu")) is generator
    assert generator_on(None, torch.device("cuda:1")) is None


def test_work_on_one_gpu_is_timed_in_its_own_stream_and_on_two_after_both(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            asked.append(("event", stream))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: f"stream of {gpu}")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda gpu: asked.append(("wait", str(gpu))))
    one, two = torch.device("cuda:1"), torch.device("cuda:0")
    Stopwatch(one, one).mark()
    assert asked == [("event", "stream of cuda:1")]
    asked.clear()
    assert isinstance(Stopwatch(one, two).mark(), float)
    assert asked == [("wait", "cuda:0"), ("wait", "cuda:1")]
    asked.clear()
    assert isinstance(Stopwatch(torch.device("cpu"), one).mark(), float)  # an event says nothing of a CPU's work
    assert asked == [("wait", "cuda:1")]


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "awq"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "bnb-int8"),
        (
            {
                "quantization_config": {
                    "quant_method": "bitsandbytes",
                    "load_in_4bit": True,
                    "bnb_4bit_quant_type": "nf4",
                }
            },
            "bnb-nf4",
        ),
    ],
)
def test_the_method_of_a_checkpoint(config: dict, method: str | None) -> None:
    assert method_of(config) == method
    assert label_of("none", method, "it") == (method or "none")
    if method is not None:
        assert label_of(method, method, "it") == method
        with pytest.raises(DraftgaugeError, match=f"it comes quantised by {method} "):
            label_of("nf4", method, "it")
    else:
        with pytest.raises(DraftgaugeError, match="unknown compression 'awq'"):
            label_of("awq", method, "it")


@needs_bitsandbytes
def test_a_checkpoint_that_comes_quantised_goes_by_its_method(folder: Path, tmp_path: Path) -> None:
    made = load_model(folder, "nf4", "cpu", engine="modules")
    made.module.save_pretrained(tmp_path)
    spec = PairSpec(target=str(tmp_path), draft=None, drafter="prompt_lookup", machine=DeviceSpec(device="cpu"))
    assert labelled(spec).compression == ("bnb-nf4",)
    assert labelled(labelled(spec)) == labelled(spec)
    again = load_model(tmp_path, "bnb-nf4", "cpu")
    assert again.spec.engine == "lean"
    torch.testing.assert_close(again.forward(tokens(7)), made.forward(tokens(7)), rtol=2e-2, atol=2e-2)
    with pytest.raises(DraftgaugeError, match="comes quantised by bnb-nf4"):
        load_model(tmp_path, "bf16", "cpu")


def test_a_method_whose_library_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises((MissingLibraryError, ModelError), match=f"cannot load {tmp_path}"):
        load_model(tmp_path, "none", "cpu")
