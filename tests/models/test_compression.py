"""Compressed targets: that they load, compute what their weights say, and refuse clearly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError
from draftgauge.core.parts import WEIGHT_ONLY
from draftgauge.models import device
from draftgauge.models.device import COMPRESSIONS, activation_dtype, check_compression, quantization_config
from draftgauge.models.loading import load_model, wrap
from tiny import needs_bitsandbytes, save_tiny, tiny_model, tokens

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model"), hidden_size=64, intermediate_size=128)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


def test_unknown_names_are_refused_with_the_list() -> None:
    with pytest.raises(DraftgaugeError, match=r"'int3'.*uncompressed, fp32.*int8-weight, int8-dynamic, nf4, int4"):
        check_compression("int3")


def test_the_dtype_of_activations() -> None:
    on_cpu = [activation_dtype(name, CPU) for name in COMPRESSIONS if name not in WEIGHT_ONLY]
    on_gpu = [activation_dtype(name, GPU) for name in COMPRESSIONS if name not in WEIGHT_ONLY]
    half = [torch.float16, torch.bfloat16]
    assert on_cpu == [torch.float32, torch.float32, *half, torch.float32, torch.float32]
    assert on_gpu == [torch.bfloat16, torch.float32, *half, torch.bfloat16, torch.bfloat16]


def test_a_missing_library_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match=r"pip install .draftgauge\[quant\]"):
        quantization_config("nf4", torch.float32)
    assert quantization_config("bf16", torch.float32) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("uncompressed", torch.float32), ("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)],
)
def test_unquantised_models_load_in_their_dtype(folder: Path, name: str, dtype: torch.dtype) -> None:
    cached = load_model(folder, name, device="cpu")
    assert cached.spec.dtype == dtype
    assert {p.dtype for p in cached.module.parameters()} == {dtype}
    assert cached.forward(tokens(4)).dtype == torch.float32


@needs_bitsandbytes
@pytest.mark.parametrize(("name", "kind"), [("int8", "Linear8bitLt"), ("nf4", "Linear4bit")])
def test_both_engines_run_quantised_linears_alike(folder: Path, name: str, kind: str) -> None:
    text = tokens(20)
    lean, modules = (
        load_model(folder, name, device="cpu", engine="lean"),
        load_model(folder, name, device="cpu", engine="modules"),
    )
    linears = [m for m in lean.module.modules() if isinstance(m, nn.Linear) and m is not lean.module.lm_head]
    assert {type(m).__name__ for m in linears} == {kind}
    assert type(lean.module.lm_head) is nn.Linear
    rows = [
        torch.cat((cached.forward(text[:12]), cached.forward(text[12:13]), cached.forward(text[13:])))
        for cached in (lean, modules)
    ]
    branched = [cached.branches(torch.tensor([5, 20])).step(tokens(2, seed=1)) for cached in (lean, modules)]
    exact = wrap(tiny_model()).forward(text)
    assert distance(rows[0], rows[1]) < 2e-3  # a rounding apart at most
    assert distance(branched[0], branched[1]) < 2e-3
    assert 5e-3 < distance(rows[0], exact) < {"int8": 0.1, "nf4": 0.6}[name]  # quantised, and still the same model


@needs_bitsandbytes
@pytest.mark.parametrize("overrides", [{"hidden_size": 96, "head_dim": 32}, {"intermediate_size": 144}])
def test_nf4_refuses_widths_before_it_loads(tmp_path: Path, overrides: dict[str, int]) -> None:
    save_tiny(tmp_path, **overrides)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"divisible by 64.*model\.layers\.0"):
        load_model(tmp_path, "nf4", device="cpu")


@needs_bitsandbytes
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_experts_that_bitsandbytes_leaves_as_they_are_are_refused_before_loading(tmp_path: Path, family: str) -> None:
    widths = {"mlp_only_layers": []} if family == "qwen3_moe" else {}
    save_tiny(tmp_path, family, **widths)
    left = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=quantization_config("int8", torch.float32)
    )
    assert left.model.layers[0].mlp.experts.gate_up_proj.dtype == torch.float32  # or they need not be refused
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=rf"\d\d% of the weights of this {family} model.*int8 would leave them.*bf16"):
        load_model(tmp_path, "int8", device="cpu")
