"""The query estimation error: 0 where the future query follows from the input, elsewhere what is computed directly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from draftgauge.diagnostics.bottlenecks import QueryErrors
from draftgauge.diagnostics.query_error import _Attended, _prefix_share, query_errors
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse import blockwise
from draftgauge.drafters.reuse.blockwise import BlockNet
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from reuse_nets import net_for, target, texts
from tiny import tiny_model

DEPTHS = 3


def knowing_net(model: CachedModel, block: int = 0) -> ReuseNet:
    """A drafter whose query is the first layer's of the target, a linear function of the normalised token embedding;
    the mask of a block is the embedding of the token 5.
    """
    config = reuse_config(model.module.config, "kv", injection="concat", taps=(0,), block=block)
    net = new_net(config, model.module, seed=1).eval()
    first = model.module.get_decoder().layers[0]
    layer = net.layers[0] if isinstance(net, BlockNet) else net.blocks[0]
    attention = layer.attention if isinstance(net, BlockNet) else layer.chain_attention
    norm, linear = layer.token_norm, attention.from_token
    if isinstance(net, BlockNet):
        net.mask.data.copy_(net.embedding[5])
        attention.from_state.weight.data.zero_()  # of what the block enters with
    weight = first.self_attn.q_proj.weight
    norm.weight.data.copy_(first.input_layernorm.weight)
    linear.weight.data[: len(weight)] = weight
    return net.requires_grad_(False)


def llama(**heads: int) -> CachedModel:
    options = {"num_hidden_layers": 2, "vocab_size": 6, "pad_token_id": None}  # so that no embedding is zero
    return wrap(tiny_model("llama", **options, **heads), "auto")


def means(found: QueryErrors, measure: str) -> np.ndarray:
    mean: np.ndarray = found.sums[measure].sum(0) / found.positions.sum(0)[:, None, None]
    return mean


def test_a_query_that_is_a_linear_function_of_the_input_is_found_to_be_known() -> None:
    model = llama()
    found = query_errors(knowing_net(model), model.module, texts(model), DEPTHS)
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


@pytest.mark.parametrize("design", ["hidden", "control"])
def test_designs_that_read_no_keys_have_no_such_error(design: str) -> None:
    model = target()
    assert query_errors(net_for(model, design), model.module, texts(model, 3), DEPTHS) is None


def test_a_block_knows_the_query_of_the_tokens_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is compared with the query at its own position, which is known where the token there is the mask's."""
    model = llama(num_key_value_heads=4)  # as many as query heads, which leaves nothing to pair
    fives = [HeldOutText((1, 2, 3, 4), (5,) * 9), HeldOutText((2, 1), (5,) * 7)]
    net, others = knowing_net(model, block=4), texts(model)
    found, error = (query_errors(net, model.module, each, 4) for each in (fives, others))
    assert found.positions.tolist() == [[9, 8, 7, 6], [7, 6, 5, 4]]
    assert means(found, "query_kl") == pytest.approx(np.zeros((4, 1, 1)), abs=1e-6)
    assert (means(found, "uniform_kl") > 0.05).all(), "attention is flat: the test shows nothing"
    assert np.array_equal(found.agreed["true query"], found.agreed["own query"])
    assert means(error, "query_kl")[0] == pytest.approx(0, abs=1e-6)  # the first slot sees its token
    assert (means(error, "query_kl")[1:] > 0.01).all()
    monkeypatch.setattr(blockwise, "CHUNK_BLOCKS", 3)
    pieces = query_errors(net, model.module, others, 4)
    assert means(pieces, "query_kl") == pytest.approx(means(error, "query_kl"), abs=1e-6)
    assert np.array_equal(pieces.agreed["true query"], error.agreed["true query"])


def test_the_prefix_has_its_share_of_one_softmax_over_all_keys() -> None:
    """Of the last two of three anchors, beside fused states and three keys of each one's own draft."""
    queries, keys, states, drafted = (torch.randn(1, 1, *shape) for shape in ((2, 4), (3, 4), (3, 4), (2, 3, 4)))
    share = _prefix_share(_Attended(queries, (keys, keys), [states], drafted))[0, 0]
    for row, seen in enumerate((2, 3)):
        all_keys = torch.cat((keys[0, 0, :seen], states[0, 0, :seen], drafted[0, 0, row]))
        weights = (all_keys @ queries[0, 0, row] / 2).softmax(0)
        assert float(share[row]) == pytest.approx(float(weights[:seen].sum()), rel=1e-5)
