"""Gradients, the gate and the query estimation error, on drafters whose answers are known."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from draftgauge.core.config import to_mapping
from draftgauge.diagnostics.bottlenecks import Bottlenecks, GroupGradient, QueryErrors, bottleneck_rows
from draftgauge.diagnostics.gradients import gradient_statistics
from draftgauge.diagnostics.limits import effective_rank, gate_openness, measure_bottlenecks
from draftgauge.diagnostics.query_error import _Attended, _prefix_share, query_errors
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse import blockwise
from draftgauge.drafters.reuse.blockwise import BlockNet, block_states
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import batch_features
from reuse_nets import net_for, target, texts, unroll
from tiny import tiny_model

DEPTHS = 3
DEAD = ("blocks.0.chain_attention.queries", "blocks.0.chain_attention.keys", "blocks.0.chain_attention.values")


def gradients(
    net: ReuseNet, model: CachedModel, held_out: list[HeldOutText], depths: int = DEPTHS, samples: int = 1
) -> dict[tuple[str, int], GroupGradient]:
    found = gradient_statistics(net, model.module, held_out, depths, samples)
    return {(one.group, one.depth): one for one in found}


def test_a_dead_group_is_found() -> None:
    """Nothing goes through an output projection of zeros, so nothing behind it learns; the projection itself does."""
    model, net = target(), net_for(target(), "kv")
    net.blocks[0].chain_attention.output.weight.data.zero_()
    found = gradients(net, model, texts(model)[4:], samples=2)
    for group in (*DEAD, "blocks.0.injection.keys", "blocks.0.injection.values"):
        for depth in (0, DEPTHS - 1):
            dead = found[group, depth]
            assert (dead.gradient_norm, dead.gradient_to_weight, dead.gradient_share) == (0, 0, 0)
    assert found["blocks.0.chain_attention.output", 0].gradient_norm > 0


def test_norms_are_those_of_the_mean_gradient() -> None:
    """One sample: the same as asking for the gradient of that anchor's loss."""
    model, net = target(), net_for(target(), "kv")
    text = texts(model)[4]
    found = gradients(net, model, [text])
    net.requires_grad_(True)
    tokens, anchor = torch.tensor([text.tokens]), len(text.prompt) - 2
    features = batch_features(model.module, tokens, net.config.tap_plan)
    logits = unroll(net, tokens, features, DEPTHS)[2][0, anchor]
    taught = features.logits[0, anchor + 3].softmax(-1)
    (-(taught * logits.log_softmax(-1)).sum()).backward()
    for group, parameter in (("head", net.head.weight), ("blocks.0.mlp.down", net.blocks[0].mlp.down.weight)):
        one = found[group, 2]
        assert one.gradient_norm == pytest.approx(float(parameter.grad.norm()), rel=1e-4)
        assert one.gradient_to_weight == pytest.approx(one.gradient_norm / float(parameter.norm()), rel=1e-4)


@pytest.mark.parametrize(
    ("design", "options", "places"),
    [("kv", {"markov_rank": 2}, 4), ("hybrid", {}, 4), ("hidden", {"mask_token": 3}, 5)],
)
def test_gradients_of_a_block_reach_all_its_slots(design: str, options: dict[str, int], places: int) -> None:
    model, net = target(), net_for(target(), design, block=4, **options)
    text = texts(model)[4]
    found = gradients(net, model, [text], 4)
    net.requires_grad_(True)
    tokens, anchor, attention = torch.tensor([text.tokens]), len(text.prompt) - 2, net.layers[0].attention
    features = batch_features(model.module, tokens, net.config.tap_plan)
    state = block_states(net, tokens, features, torch.tensor([[anchor]]))[0, 0, 3]
    logits = net.logits(state, tokens[0, anchor + 4])
    (-(features.logits[0, anchor + 4].softmax(-1) * logits.log_softmax(-1)).sum()).backward()
    linears = [each for each in (attention.from_token, attention.from_state) if each is not None]
    for kind, rows in attention.parts().items():
        one = found[f"layers.0.attention.{kind}", 3]
        gradient = torch.cat([linear.weight.grad[rows] for linear in linears])
        assert one.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-4)
        # In one layer a slot's query sees the keys of all slots, and those that are made of the text's hidden states.
        assert one.draft_share == pytest.approx(1 / places if kind == "queries" else 1)
        if kind != "queries":
            assert one.gradient_share == pytest.approx(places / (anchor + 1 + places) if design == "kv" else 1)
    injected = found["fuse" if design == "hidden" else "layers.0.injection.values", 0]
    assert (injected.draft_share, injected.gradient_share) == (0, pytest.approx((anchor + 1) / (anchor + 1 + places)))


def test_the_effective_rank_counts_directions() -> None:
    assert effective_rank(torch.eye(4)) == pytest.approx(4)
    assert effective_rank(torch.outer(torch.arange(1.0, 4), torch.arange(1.0, 6))) == pytest.approx(1, abs=1e-4)
    assert effective_rank(torch.zeros(2, 3)) == 0
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0]))) == pytest.approx(4 / 3**0.75)  # of weights 3/4 and 1/4
    net = net_for(target(), "hybrid", block=4)
    attention = net.layers[0].attention
    for linear in (attention.from_token, attention.from_state):
        linear.weight.data[attention.parts()["keys"]] = 1
    limits = measure_bottlenecks(net, target().module, [], 4)
    ranks = {row["group"].split(".")[-1]: row["effective_rank"] for row in limits.ranks}
    assert ranks["keys"] == pytest.approx(1, abs=1e-3)
    assert min(ranks["queries"], ranks["values"]) > 20
    assert limits.gate == [], "one softmax joins what a block-wise hybrid sees"


def test_a_gate_is_measured_without_padding() -> None:
    model, net = target(), net_for(target(), "hybrid")
    join = net.blocks[0].join
    join.gate.weight.data.zero_()
    half = join.gate.bias.shape[0] // 2
    join.gate.bias.data[:half], join.gate.bias.data[half:] = 3.0, -3.0
    whole, *by_depth = gate_openness(net, model.module, texts(model), DEPTHS)
    assert whole["gate_mean"] == pytest.approx(0.5, abs=1e-4)
    assert whole["gate_open"] == 0.5
    assert [row["depth"] for row in by_depth] == list(range(DEPTHS))
    assert gate_openness(net_for(model, "cross"), model.module, texts(model), DEPTHS) == []


def test_rows_pool_seeds_and_survive_json() -> None:
    model = target()
    held_out = texts(model)
    log = {"step": 10, "gradient_norm/head": 2.0, "gate_mean": 0.4}
    seeds = []
    for seed in (1, 2):
        found = measure_bottlenecks(net_for(model, "hybrid", seed), model.module, held_out, DEPTHS, [log])
        seeds.append(Bottlenecks.from_json(json.loads(json.dumps(to_mapping(found)))))
    rows = bottleneck_rows(seeds, {"design": "hybrid"})
    assert all(row["design"] == "hybrid" and row["seeds"] == 2 for row in rows)
    query = [row for row in rows if "query_kl" in row]
    assert [(row["depth"], row["target_layer"]) for row in query] == [
        (d, s) for s in (0, 1, 2) for d in range(1, DEPTHS + 1)
    ]
    sums = [seed.query.sums["query_kl"][:, 0, 0, 0].sum() for seed in seeds if seed.query]
    assert query[0]["query_kl"] == pytest.approx(sum(sums) / (2 * seeds[0].query.positions[:, 0].sum()))
    assert all(row["query_kl_low"] <= row["query_kl"] <= row["query_kl_high"] for row in query)
    controls = [row for row in rows if "control" in row]
    assert {row["control"] for row in controls} == {"true query"}
    assert all(row["difference_low"] <= row["difference"] <= row["difference_high"] for row in controls)
    probed = [row for row in rows if "gradient_share" in row]
    assert {row["depth"] for row in probed} == {1, DEPTHS}
    assert "blocks.0.chain_attention.keys" in {row["group"] for row in probed}
    assert any("gate_open" in row and "depth" not in row and "step" not in row for row in rows)
    (trained,) = (row for row in rows if "step" in row)
    assert (trained["step"], trained["gate_mean"]) == (10, pytest.approx(0.4))


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
