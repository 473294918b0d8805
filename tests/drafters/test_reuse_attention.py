"""Joint attention against one masked softmax over all keys, forwards and backwards; rotation; the injections."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from draftgauge.drafters.reuse.attention import FusedCausal, joint_attention, plain_attention
from draftgauge.drafters.reuse.blocks import GatedDelta, Injection
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.rotary import RotaryTables, rotate, unrotate, window
from draftgauge.models.taps import TapPlan, batch_features
from tiny import tiny_model, tokens

BATCH, HEADS, KEY_HEADS, ROWS, DIM = 2, 4, 2, 11, 8
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def inputs(depths: int) -> list[Tensor]:
    return [
        random(0, BATCH, HEADS, ROWS, DIM),
        *(random(seed + 1, BATCH, KEY_HEADS, ROWS, DIM) for seed in range(2 + 2 * depths)),
    ]


def masked(queries: Tensor, keys: Tensor, values: Tensor, *own: Tensor) -> Tensor:
    """All keys side by side: the shared ones causal, those of every depth on a diagonal."""
    allowed = torch.cat((torch.ones(ROWS, ROWS).tril(), *(torch.eye(ROWS) for _ in own[::2])), -1).bool()
    every_key, every_value = torch.cat((keys, *own[::2]), 2), torch.cat((values, *own[1::2]), 2)
    return F.scaled_dot_product_attention(queries, every_key, every_value, allowed, enable_gqa=True)


def plain(queries: Tensor, keys: Tensor, values: Tensor, *own: Tensor) -> Tensor:
    return plain_attention(queries, (keys, values), list(zip(own[::2], own[1::2], strict=True)), causal=True)


@pytest.mark.parametrize("depths", [0, 1, 6])
@pytest.mark.parametrize("attention", [plain, FusedCausal.apply])
def test_one_softmax_over_shared_and_own_keys(attention, depths: int) -> None:
    tensors = inputs(depths)
    weights = random(99, BATCH, HEADS, ROWS, DIM).detach()
    found, expected = attention(*tensors), masked(*tensors)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    gradients = [torch.autograd.grad((output * weights).sum(), tensors) for output in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-6, rtol=0)


@pytest.mark.parametrize(("capability", "fused"), [((9, 0), True), ((7, 5), False)])
def test_a_gpus_kernels_get_one_dtype(
    capability: tuple[int, int], fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are injected as they are, are float32 under autocast, and the backward kernel is cast nothing. GPUs
    before Ampere have no such kernels."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr("draftgauge.drafters.reuse.attention.plain_attention", lambda queries, *_: queries)
    given: list[torch.dtype] = []
    monkeypatch.setattr(FusedCausal, "apply", lambda *tensors: given.extend(t.dtype for t in tensors) or tensors[0])
    with FakeTensorMode():
        half, wide = (torch.empty(1, KEY_HEADS, ROWS, DIM, dtype=d, device="cuda") for d in (torch.bfloat16, None))
        joint_attention(half.repeat_interleave(2, 1), (wide, wide), [(half, half)], causal=True)
    assert given == [torch.bfloat16] * 5 * fused


@pytest.mark.parametrize("rope", [None, YARN])
def test_rotation_is_the_models_and_can_be_taken_back(rope: dict[str, object] | None) -> None:
    model = tiny_model("llama", rope_parameters=rope) if rope else tiny_model("llama")
    tables = RotaryTables(model.model.rotary_emb)
    x = random(0, 2, 3, 7, 16).detach().float()
    cos, sin = model.model.rotary_emb(x, torch.arange(20, 27)[None])
    half = torch.cat((-x[..., 8:], x[..., :8]), -1)
    places = window(tables(600, x), 20, 27)  # more than the first tables hold
    torch.testing.assert_close(rotate(x, places), x * cos + half * sin)
    torch.testing.assert_close(unrotate(rotate(x, places), places), x)


@pytest.mark.parametrize("family", ["qwen3", "yarn", "gemma3"])
@pytest.mark.parametrize("injection", ["project", "project-rope"])
def test_a_projection_onto_one_layer_gives_its_keys_as_cached(family: str, injection: str) -> None:
    model = tiny_model("llama", rope_parameters=YARN) if family == "yarn" else tiny_model(family, num_hidden_layers=4)
    config = reuse_config(model.config, "kv", injection=injection)
    seen = batch_features(model, tokens(12)[None], TapPlan((), config.kv_layers))
    slots, width = len(config.kv_layers), config.kv_heads * config.head_dim
    module, rotary = Injection(config), RotaryTables(model.model.rotary_emb)
    for linear in (module.keys, module.values):
        linear.weight.data.zero_()[:, -width:] = torch.eye(width)
    for begin, end in [(0, 12), (5, 9)]:
        places = window(rotary(end, seen.keys, config.rope_kind), begin, end)
        keys, values = module(seen.keys[..., begin:end, :], seen.values[..., begin:end, :], places)
        torch.testing.assert_close(keys, seen.keys[:, slots - 1, :, begin:end], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(values, seen.values[:, slots - 1, :, begin:end])


def test_project_rope_commutes_with_moving_the_text_and_project_does_not() -> None:
    """Without rotation, the same content at another place gives the same projected content."""
    model = tiny_model("qwen3", num_hidden_layers=4)
    rotary = RotaryTables(model.model.rotary_emb)
    content, values = random(0, 1, 3, 2, 6, 16).detach().float(), torch.zeros(1, 3, 2, 6, 16)
    for injection, moves in [("project-rope", True), ("project", False)]:
        module = Injection(reuse_config(model.config, "kv", injection=injection, taps=(0, 1, 2)))
        projected = []
        for begin in (0, 40):
            places = window(rotary(64, content), begin, begin + 6)
            keys, _ = module(rotate(content, places), values, places)
            projected.append(unrotate(keys, places))
        assert torch.allclose(*projected, atol=1e-5) == moves


def test_the_gated_delta_is_the_papers() -> None:
    join = GatedDelta(4)
    n, o = random(0, 3, 4).detach().float(), random(1, 3, 4).detach().float()
    d = o - n
    g = torch.sigmoid(torch.cat((n, o, d), -1) @ join.gate.weight.T + join.gate.bias)
    torch.testing.assert_close(join(n, o), n + g * (d @ join.delta.weight.T))
    torch.testing.assert_close(join.openness(n, o), g)


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU: the flash kernels of CUDA are other ones than the CPU's"
)
@pytest.mark.parametrize("depths", [0, 3])
def test_the_kernels_of_a_gpu(depths: int) -> None:
    exact = inputs(depths)
    halves = [tensor.detach().to("cuda", torch.bfloat16).requires_grad_() for tensor in exact]
    weights = random(99, BATCH, HEADS, ROWS, DIM).detach()
    found, expected = FusedCausal.apply(*halves), masked(*exact)
    torch.testing.assert_close(found.cpu().double(), expected, atol=0.03, rtol=0.03)
    ours = torch.autograd.grad((found * weights.to(found)).sum(), halves)
    theirs = torch.autograd.grad((expected * weights).sum(), exact)
    for half, whole in zip(ours, theirs, strict=True):
        torch.testing.assert_close(half.cpu().double(), whole, atol=0.06, rtol=0.06)
