"""Compressed targets: what their weights say is computed, drafting stays lossless, and misfits are refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

from draftgauge.core.errors import DraftgaugeError, MissingLibraryError, ModelError
from draftgauge.core.parts import INT4, INT8_DYNAMIC, INT8_WEIGHT, WEIGHT_ONLY
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models import device, weight_only
from draftgauge.models.device import COMPRESSIONS, activation_dtype, check_compression, quantization_config
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.weight_only import KERNELS, WeightOnlyLinear, joined, quantise
from draftgauge.policies.fixed import FixedLength
from tiny import needs_bitsandbytes, noisy, one_pass, save_tiny, tiny_model, tokens

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


def quantised(kind: str, family: str = "qwen2", **overrides) -> nn.Module:
    model = tiny_model(family, **overrides)
    quantise(model, kind)
    return model


def linear(inputs: int, outputs: int, bias: bool = False, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias)


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
@torch.no_grad()
def test_a_linear_multiplies_by_its_rounded_weight_in_every_number_of_rows(kind: str, monkeypatch) -> None:
    monkeypatch.setattr(weight_only, "AT_ONCE", 96 * 64)  # in pieces, the last one smaller
    whole, x = linear(96, 176, bias=True), torch.randn(2, 9, 96)
    packed = weight_only._packed(whole, kind)
    apart = (packed.weight - whole.weight).abs().max()
    levels = {INT4: 15, INT8_DYNAMIC: 63, INT8_WEIGHT: 127}[kind]
    assert 0 < apart < 1.2 / levels * whole.weight.abs().max()
    torch.testing.assert_close(packed.weight, weight_only._in_full(whole, kind).weight)
    read = x
    if kind == INT8_DYNAMIC:  # inputs are rounded too, and nothing saturates
        unit = x.abs().amax(-1, keepdim=True) / 127
        read = (x / unit).round() * unit
        extreme = nn.Linear(96, 16, False)
        nn.init.ones_(extreme.weight)
        torch.testing.assert_close(weight_only._packed(extreme, kind)(torch.ones(1, 96)), torch.full((1, 16), 96.0))
    torch.testing.assert_close(packed(x), F.linear(read, packed.weight, whole.bias))
    for rows in (1, 2, 3, 5, 9):
        assert torch.equal(packed(x[1, :rows]), packed(x[1])[:rows])
    with torch.enable_grad():
        asked = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(packed(asked).sum(), asked)
    torch.testing.assert_close(gradient[0, 0], packed.weight.sum(0))


@pytest.mark.parametrize("kind", [INT4, INT8_WEIGHT])
@torch.no_grad()
def test_joined_linears_hold_nothing_twice(kind: str) -> None:
    parts = [weight_only._packed(linear(64, size, bias=True, seed=size), kind) for size in (128, 64, 64)]
    x = torch.randn(3, 64)
    apart = torch.cat([part(x) for part in parts], -1)
    whole = joined(parts)
    assert torch.equal(whole(x), apart)
    assert torch.equal(torch.cat([part(x) for part in parts], -1), apart)
    assert {part.packed.untyped_storage().data_ptr() for part in (whole, *parts)} == {whole.packed.data_ptr()}
    odd = [weight_only._packed(linear(64, size), kind) for size in (48, 64)]
    assert joined(odd) is None
    assert joined([odd[1], weight_only._packed(linear(64, 64), {INT4: INT8_WEIGHT, INT8_WEIGHT: INT4}[kind])]) is None


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
@pytest.mark.parametrize("family", ["qwen3", "llama-biases", "gemma2"])
def test_engines_agree_and_drafting_is_lossless(kind: str, family: str) -> None:
    model, text = quantised(kind, family, hidden_size=128), tokens(20)
    expected = one_pass(model, text)
    target, modules = wrap(model, "lean"), wrap(quantised(kind, family, hidden_size=128), "modules")
    for cached in (target, modules):
        rows = torch.cat((cached.forward(text[:12]), cached.forward(text[12:13]), cached.forward(text[13:])))
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=5e-4)
    draft = wrap(noisy(tiny_model(family, hidden_size=128), 0.05), "lean")
    settings, accepted = DecodingSettings(40), 0
    for prompt in (text.tolist(), tokens(9, seed=1).tolist()):
        plain = plain_decode(target, prompt, settings)
        found = speculative_decode(target, LanguageModelDrafter(draft), FixedLength(4), prompt, settings)
        assert found.tokens == plain.tokens
        accepted += sum(step.accepted for step in found.steps)
    assert accepted > 0


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_loaded_models_hold_every_linear_so_and_read_in_bfloat16(kind: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, "llama", tie_word_embeddings=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cached = load_model(tmp_path, kind, "cpu")
    assert (cached.spec.engine, cached.spec.dtype) == ("lean", torch.bfloat16)
    assert isinstance(cached.module.lm_head, WeightOnlyLinear)
    assert type(cached.module.get_input_embeddings()) is nn.Embedding
    assert not any(type(part) is nn.Linear for part in cached.module.modules())
    exact = one_pass(tiny_model("llama", tie_word_embeddings=True), tokens(8))
    ours = cached.forward(tokens(8))
    assert 1e-3 < (ours - exact).norm() / exact.norm() < {INT4: 0.7, INT8_DYNAMIC: 0.2, INT8_WEIGHT: 0.1}[kind]


def test_widths_that_do_not_divide_stay_as_they_are_with_one_warning() -> None:
    with pytest.warns(match=r"6 of 15 linears stay in float32, at 4 times.*divisible by 32.*by 16") as said:
        model = quantised(INT4, intermediate_size=72)
    assert len(said) == 1
    assert type(model.model.layers[0].mlp.gate_proj) is nn.Linear
    torch.testing.assert_close(wrap(model).forward(tokens(9)), one_pass(model, tokens(9)), rtol=1e-4, atol=5e-4)
    quantise(tiny_model(intermediate_size=72), INT8_WEIGHT)  # which takes any width, without a warning


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_a_pytorch_without_the_kernel_has_the_same_weights_and_says_what_it_costs(kind: str, monkeypatch) -> None:
    expected = one_pass(quantised(kind), tokens(9))
    monkeypatch.setattr(weight_only, "private", lambda name: not name.endswith(KERNELS[kind][0]) or None)
    times = {INT4: 4, INT8_DYNAMIC: 2, INT8_WEIGHT: 2}[kind]
    lacks = r"lacks torch\.ops\.(aten\._(convert_)?weight|quantized\.linear_prepack)"
    with pytest.warns(match=rf"{lacks}.*held in float32, at {times} times") as said:
        model = quantised(kind)
    assert len(said) == 1
    atol = 5e-4 if kind != INT8_DYNAMIC else 0.1 * expected.abs().max().item()  # inputs are not rounded then
    torch.testing.assert_close(one_pass(model, tokens(9)), expected, rtol=1e-4, atol=atol)


def test_what_cannot_be_held_so_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path, "mixtral")
    with pytest.raises(ModelError, match=r"are in its experts.*int4 would leave them"):
        load_model(tmp_path, "int4", "cpu")
    with pytest.raises(DraftgaugeError, match="int8-weight runs on the CPU, not on cuda"):
        activation_dtype(INT8_WEIGHT, torch.device("cuda"))
