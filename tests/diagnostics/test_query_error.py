"""The query estimation error: nothing where the future query is a known function of the input, and what a direct
computation gives elsewhere.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from draftgauge.diagnostics.bottlenecks import CONTROLS, QueryErrors
from draftgauge.diagnostics.query_error import prefix_attention, query_errors
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse import ReuseNet, new_net, reuse_config
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from reuse_nets import net_for, target, texts
from tiny import tiny_model

DEPTHS = 3


def knowing_net(model: CachedModel, error: float = 0.0) -> ReuseNet:
    """A drafter whose query is the first layer's of the target, a linear function of the normalised token embedding;
    ``error`` times a random matrix is added to it.
    """
    config = reuse_config(model.module.config, "kv", injection="concat", taps=(0,), target_fingerprint="tiny")
    net = new_net(config, model.module, seed=1).eval()
    block, first = net.blocks[0], model.module.get_decoder().layers[0]
    assert block.token_norm is not None
    assert block.chain_attention is not None
    assert block.chain_attention.from_token is not None
    weight = first.self_attn.q_proj.weight
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        block.token_norm.weight.copy_(first.input_layernorm.weight)
        block.chain_attention.from_token.weight[: len(weight)] = weight + error * noise
    return net.requires_grad_(False)


def llama() -> CachedModel:
    return wrap(
        tiny_model("llama", num_hidden_layers=2, vocab_size=6, pad_token_id=None), "auto"
    )  # no embedding is zero


def means(found: QueryErrors, measure: str) -> np.ndarray:
    mean: np.ndarray = found.sums[measure].sum(0) / found.positions.sum(0)[:, None, None]
    return mean


def test_a_query_that_is_a_linear_function_of_the_input_is_found_to_be_known() -> None:
    model = llama()
    found = query_errors(knowing_net(model), model.module, texts(model), DEPTHS)
    assert found is not None
    assert found.target_layers == (0,)
    assert means(found, "query_kl") == pytest.approx(np.zeros((DEPTHS, 1, 1)), abs=1e-6)
    assert (means(found, "uniform_kl") > 0.05).all(), "attention is flat: the test shows nothing"
    assert np.array_equal(found.agreed["true query"], found.agreed["own query"])


@pytest.mark.parametrize("family", ["qwen3", "llama3-rope", "gemma2", "gemma3"])
def test_distances_are_those_of_the_targets_own_attention(family: str) -> None:
    """With one head nothing is to be paired, and the eager attention of transformers gives every distribution."""
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    module = tiny_model(family, num_hidden_layers=4, vocab_size=6, **heads)
    config = reuse_config(module.config, "kv", injection="concat", target_fingerprint="tiny")
    net = new_net(config, module, seed=1).eval().requires_grad_(False)
    text = HeldOutText((1, 2, 3, 4), (5, 1, 2, 4, 3))
    found = query_errors(net, module, [text], DEPTHS)
    assert found is not None
    assert found.positions.tolist() == [[5.0, 4.0, 3.0]]
    module.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = module(torch.tensor([text.tokens]), output_attentions=True).attentions
    for depth in range(DEPTHS):
        for slot, layer in enumerate(config.kv_layers):
            rows = [prefix_part(attentions[layer][0, :, anchor + 1 + depth], anchor) for anchor in range(2, 7 - depth)]
            expected = sum(float((row * (row * row.shape[-1]).log()).sum()) for row in rows)
            assert found.sums["uniform_kl"][0, depth, 0, slot] == pytest.approx(expected, rel=1e-3)


def prefix_part(row: Tensor, anchor: int) -> Tensor:
    part = row[:, : anchor + 1]
    return part / part.sum(-1, keepdim=True)


def test_what_is_measured_survives_json() -> None:
    model = target()
    found = query_errors(net_for(model, "cross"), model.module, texts(model, 3), DEPTHS)
    assert found is not None
    again = QueryErrors.from_json(json.loads(json.dumps(found.to_json())))
    assert again.target_layers == found.target_layers
    assert np.array_equal(again.positions, found.positions)
    assert all(np.array_equal(again.sums[name], found.sums[name], equal_nan=True) for name in found.sums)
    assert all(np.array_equal(again.agreed[name], found.agreed[name]) for name in CONTROLS)


@pytest.mark.parametrize("design", ["hidden", "control"])
def test_designs_that_read_no_keys_have_no_such_error(design: str) -> None:
    model = target()
    assert query_errors(net_for(model, design), model.module, texts(model, 3), DEPTHS) is None


def test_attention_over_the_prefix_is_what_the_errors_are_measured_on() -> None:
    model = llama()
    (text, *_), net = texts(model), knowing_net(model)
    own, true = prefix_attention(net, model.module, text, depth=1)
    anchors = own.shape[1]
    assert own.shape == true.shape == (net.config.chain_query_heads, anchors, anchors)
    assert own.sum(-1) == pytest.approx(np.ones(own.shape[:2]), abs=1e-5)
    assert not np.triu(own, 1).any()
    assert own == pytest.approx(true, abs=1e-4)
