"""Gradients, the gate and the rows of all bottlenecks, on drafters whose answers are known."""

from __future__ import annotations

import json

import pytest
import torch

from draftgauge.core.config import to_mapping
from draftgauge.diagnostics.bottlenecks import Bottlenecks, GroupGradient, bottleneck_rows
from draftgauge.diagnostics.gradients import gradient_statistics
from draftgauge.diagnostics.limits import effective_rank, gate_openness, measure_bottlenecks
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.reuse.blockwise import block_states
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import batch_features
from reuse_nets import net_for, target, texts, unroll

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
