"""How attention starts: linear estimates of the target's heads, and where they go."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import window
from draftgauge.models.base import decoder_layers
from draftgauge.training.reuse import start
from draftgauge.training.reuse.start import fit_head_maps, start_attention
from draftgauge.training.reuse.steps import Muon, make_optimizers, orthogonal
from tiny import tiny_model, tokens

PARTS = {"queries": "q_proj", "keys": "k_proj", "values": "v_proj"}


@pytest.fixture
def target() -> PreTrainedModel:
    return tiny_model("llama", num_hidden_layers=4)


@pytest.fixture
def texts() -> list[Tensor]:
    return [tokens(64, seed) for seed in range(24)]


def drafter(target: PreTrainedModel, design: str = "kv", **settings: object) -> ReuseNet:
    return new_net(reuse_config(target.config, design, **settings), target, 0)  # type: ignore[arg-type]


def test_heads_that_follow_from_the_token_are_found(target: PreTrainedModel, texts: list[Tensor]) -> None:
    """The first layer of a target without norms of heads reads nothing but the normalised embedding."""
    (maps,) = fit_head_maps(drafter(target), target, [0], texts)
    assert maps.explained > 0.99
    for part, projection in PARTS.items():
        true = getattr(decoder_layers(target)[0].self_attn, projection).weight.detach()
        assert (maps.weights[part].flatten(0, 1) - true).norm() < 0.15 * true.norm()  # type: ignore[index]


@pytest.mark.parametrize("injection", ["project", "project-rope"])
def test_a_projection_hands_on_the_layer_that_is_explained_best(
    target: PreTrainedModel, texts: list[Tensor], injection: str
) -> None:
    net = drafter(target, injection=injection)
    maps = start_attention(net, target, "target", texts)
    chosen = max(range(len(maps)), key=lambda slot: maps[slot].explained)
    block = net.blocks[0]
    layers, heads, dim = len(net.config.kv_layers), net.config.kv_heads, net.config.head_dim
    keys, values = torch.randn(2, 1, layers, heads, 5, dim)
    handed_on = block.injection(keys, values, window(net.tables(8, keys), 3, 8))
    for found, given in zip(handed_on, (keys, values), strict=True):
        torch.testing.assert_close(found, given[:, chosen], atol=1e-5, rtol=1e-5)
    expected = torch.cat([maps[chosen].weights[part] for part in PARTS]).flatten(0, 1)  # type: ignore[index]
    torch.testing.assert_close(block.chain_attention.from_token.weight.detach(), expected)


def test_a_drafter_attends_to_cached_keys_as_the_target_does(target: PreTrainedModel, texts: list[Tensor]) -> None:
    """Its queries of a token at a position are those of the target's layer there, to the error of the map."""
    net = drafter(target, taps=(0,))
    start_attention(net, target, "target", texts)
    block, ids = net.blocks[0], texts[0][None]
    tables = window(net.tables(64, net.embed(ids)), 0, 64)
    part = block.token_parts(net.embed(ids)).chain
    with torch.no_grad():
        heads = block.chain_attention.heads(part, None, tables)
        cached = target(input_ids=ids, use_cache=True).past_key_values.layers[0].keys
    error = (heads.keys - cached).norm() / cached.norm()
    assert error < 0.1


@pytest.mark.parametrize("design", ["hybrid", "cross"])
def test_the_state_says_nothing_to_the_chain_at_first(
    target: PreTrainedModel, texts: list[Tensor], design: str
) -> None:
    net = drafter(target, design)
    start_attention(net, target, "target", texts)
    attention = net.blocks[0].chain_attention
    assert not attention.from_state.weight.any()


def same_weights(one: ReuseNet, other: ReuseNet) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_designs_and_targets_without_such_a_start_attend_to_themselves(
    target: PreTrainedModel, texts: list[Tensor]
) -> None:
    hidden, matched = drafter(target, "hidden"), drafter(target, "hidden")
    assert start_attention(hidden, target, "target", texts) == start_attention(matched, target, "self", []) == []
    assert same_weights(hidden, matched)
    started, fresh = drafter(target), drafter(target)
    assert start_attention(started, target, "random", texts) == []
    assert same_weights(started, fresh), "random leaves the weights"
    strange = drafter(target, "control")
    strange.config = replace(strange.config, target_family="mamba")
    with pytest.warns(UserWarning, match="projections of mamba targets are not known"):
        assert start_attention(strange, target, "target", texts) == []


@pytest.mark.parametrize(("name", "count"), [("adamw", 1), ("muon", 2)])
def test_every_parameter_has_one_optimizer(target: PreTrainedModel, name: str, count: int) -> None:
    net = drafter(target, "hybrid")
    optimizers = make_optimizers(net, name)
    assert len(optimizers) == count
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, net.parameters()))
    decaying = {id(p) for o in optimizers for group in o.param_groups if group["weight_decay"] for p in group["params"]}
    assert decaying == {id(p) for p in net.parameters() if p.ndim >= 2}
    if name == "muon":
        orthogonal = {id(p) for group in optimizers[1].param_groups for p in group["params"]}
        assert id(net.head.weight) not in orthogonal
        assert orthogonal == {id(p) for n, p in net.named_parameters() if p.ndim == 2 and not n.startswith("head")}


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_muon_is_that_of_torch_in_bfloat16(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    monkeypatch.setattr("draftgauge.training.reuse.steps.autocast_dtype", lambda device: torch.bfloat16)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    torchs = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for optimizer, matrix in ((Muon([ours], {"lr": 0.1, "weight_decay": 0.1}), ours), (torchs, theirs)):
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_muon_takes_float32_where_bfloat16_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.training.reuse.steps.autocast_dtype", lambda device: None)
    found = orthogonal(torch.randn(24, 40))
    assert found.dtype == torch.float32
    sizes = torch.linalg.svdvals(found)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3


@torch.no_grad()
def test_texts_too_short_to_draft_from_are_passed_over(target: PreTrainedModel, texts: list[Tensor]) -> None:
    short = [text[:3] for text in texts[:5]]
    with_both, with_long, with_short, fresh = (drafter(target) for _ in range(4))
    for net, given in ((with_both, [*short, *texts]), (with_long, texts), (with_short, short)):
        start._balance(net, target, given)
    assert same_weights(with_both, with_long)
    assert same_weights(with_short, fresh)
    assert not same_weights(with_long, fresh)
