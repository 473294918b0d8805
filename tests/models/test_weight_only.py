"""Weights of 4 and 8 bits in PyTorch's own kernels: what they compute, that drafting stays lossless, and fallbacks."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.parts import INT4, INT8_DYNAMIC, INT8_WEIGHT, WEIGHT_ONLY
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models import weight_only
from draftgauge.models.device import activation_dtype
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.weight_only import WeightOnlyLinear, joined, quantise
from draftgauge.policies.fixed import FixedLength
from tiny import noisy, one_pass, save_tiny, tiny_model, tokens


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
    monkeypatch.setattr(weight_only, "private", lambda name: None)
    times = {INT4: 4, INT8_DYNAMIC: 2, INT8_WEIGHT: 2}[kind]
    lacks = r"lacks torch\.ops\.(aten\._weight|quantized\.linear_with)"
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
