"""The unroll of training is what drafting does, step by step; who may see what; every weight learns."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.core.errors import ModelError
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.reuse import drafting
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import INJECTIONS, NORMS, reuse_config
from draftgauge.drafters.reuse.drafting import Chain
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.taps import Features, batch_features
from reuse_nets import DESIGNS, unroll
from tiny import tiny_model, tokens

LENGTH, DEPTHS = 18, 4
ANCHORS = LENGTH - 1 - DEPTHS
LAYERS = {"kv": (1, 2, 3, 4), "control": (1, 3)}
VARIANTS = [
    (design, layers, injection)
    for design in DESIGNS
    for layers in LAYERS.get(design, (1,))
    for injection in (INJECTIONS if design in ("kv", "hybrid", "cross") else ("project-rope",))
]
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


@functools.cache
def target(family: str) -> PreTrainedModel:
    options = {"rope_parameters": YARN} if family == "yarn" else {}
    return tiny_model("llama" if family == "yarn" else family, num_hidden_layers=4, **options)


@functools.cache
def texts() -> Tensor:
    return torch.stack([tokens(LENGTH, 1), tokens(LENGTH, 2)])


@functools.cache
def features(family: str) -> Features:
    plan = reuse_config(target(family).config, "hybrid")
    return batch_features(target(family), texts(), plan.tap_plan)


def make(
    design: str,
    layers: int = 1,
    injection: str = "project-rope",
    family: str = "qwen3",
    draft_tokens: Tensor | None = None,
    **norms: bool,
) -> ReuseNet:
    shape = {"layers": layers, "injection": injection, "intermediate_size": 48}
    kept = 0 if draft_tokens is None else len(draft_tokens)
    config = reuse_config(target(family).config, design, draft_vocabulary=kept, **shape, **norms)
    net = new_net(config, target(family), 3, draft_tokens)
    with torch.no_grad():  # norms and biases start at one and zero: too kind a test
        for index, parameter in enumerate(p for p in net.parameters() if p.ndim == 1):
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return net


def take_in(net: ReuseNet, cache: AnchorCache, row: int, end: int, seen: Features) -> tuple[Tensor, Chain]:
    """Anchors up to ``end`` (not among them) of one of the texts."""
    begin, following = cache.length, texts()[row, cache.length + 1 : end + 1]
    kv = [part[row, :, :, begin:end] if net.traits.reads_kv else None for part in (seen.keys, seen.values)]
    return drafting.take_in(
        net, cache, following, seen.hidden[row, begin:end] if net.traits.reads_hidden else None, *kv
    )


def assert_drafting_is_the_unroll(net: ReuseNet, family: str) -> None:
    unrolled = unroll(net, texts(), features(family), DEPTHS)
    assert [tuple(logits.shape) for logits in unrolled] == [(2, ANCHORS, net.config.logits)] * DEPTHS
    for row in range(2):
        cache = drafting.begin(net)
        for end in (1, 2, 5, ANCHORS):  # one anchor, the next, several at once
            logits, chain = take_in(net, cache, row, end, features(family))
            for depth in range(DEPTHS):
                torch.testing.assert_close(logits[0], unrolled[depth][row, end - 1], atol=1e-4, rtol=1e-4)
                if depth + 1 < DEPTHS:
                    logits, chain = drafting.step(net, cache, chain, texts()[row, end + 1 + depth, None])
                    assert (cache.length, chain.depth, len(chain.stream[0])) == (end, depth + 2, 1)


@pytest.mark.parametrize(("design", "layers", "injection"), VARIANTS)
def test_drafting_is_the_unroll(design: str, layers: int, injection: str) -> None:
    assert_drafting_is_the_unroll(make(design, layers, injection), "qwen3")


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("norms", [(), *((name,) for name in NORMS)], ids=" ".join)
def test_drafting_is_the_unroll_whatever_is_normalised(design: str, norms: tuple[str, ...]) -> None:
    net = make(design, **{name: name in norms for name in NORMS})
    assert_drafting_is_the_unroll(net, "qwen3")
    assert len(net.tap_norms) == (len(net.config.hidden_layers) if "norm_before_fc" in norms else 0)


@pytest.mark.parametrize("family", ["qwen2", "llama3-rope", "mistral", "gemma", "gemma3", "yarn"])
@pytest.mark.parametrize(("design", "injection"), [("hybrid", "project-rope"), ("kv", "concat")])
def test_drafting_is_the_unroll_for_every_family(family: str, design: str, injection: str) -> None:
    assert_drafting_is_the_unroll(make(design, 1, injection, family), family)


def test_an_older_chain_stays_right_while_the_text_grows() -> None:
    net, token = make("hybrid"), torch.tensor([7])
    cache = drafting.begin(net)
    _, early = take_in(net, cache, 0, 5, features("qwen3"))
    expected, _ = drafting.step(net, cache, early, token)
    take_in(net, cache, 0, ANCHORS, features("qwen3"))
    torch.testing.assert_close(drafting.step(net, cache, early, token)[0], expected, atol=0, rtol=0)


@pytest.mark.parametrize("design", DESIGNS)
def test_an_anchor_sees_no_features_after_it_and_no_tokens_after_its_input(design: str) -> None:
    net = make(design)
    seen, anchor, depth = features("qwen3"), 6, 2
    changed = Features(seen.hidden.clone(), seen.keys.clone(), seen.values.clone(), seen.logits)
    changed.hidden[:, anchor + 1 :] += 1
    changed.keys[..., anchor + 1 :, :] += 1
    changed.values[..., anchor + 1 :, :] += 1
    later = texts().clone()
    later[:, anchor + 2 + depth :] = 5
    before, after = unroll(net, texts(), seen, DEPTHS)[depth], unroll(net, later, changed, DEPTHS)[depth]
    torch.testing.assert_close(before[:, : anchor + 1], after[:, : anchor + 1])
    assert not torch.allclose(before[:, anchor + 1 :], after[:, anchor + 1 :])


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_reads_what_it_says(design: str) -> None:
    net, seen = make(design), features("qwen3")
    before = unroll(net, texts(), seen, DEPTHS)

    def changes(other: Features) -> list[bool]:
        return [
            not torch.allclose(old, new) for old, new in zip(before, unroll(net, texts(), other, DEPTHS), strict=True)
        ]

    other_hidden = Features(seen.hidden + 1, seen.keys, seen.values, seen.logits)
    other_kv = Features(seen.hidden, seen.keys.flip(-2), seen.values.flip(-2), seen.logits)
    assert changes(other_hidden) == [design in ("hidden", "hybrid", "cross")] * DEPTHS
    assert changes(other_kv) == [design in ("kv", "hybrid", "cross")] * DEPTHS


@pytest.mark.parametrize(("design", "layers", "injection"), VARIANTS)
def test_every_weight_learns_and_the_embedding_does_not(design: str, layers: int, injection: str) -> None:
    net = make(design, layers, injection)
    sum(logits.log_softmax(-1)[..., 3].mean() for logits in unroll(net, texts(), features("qwen3"), DEPTHS)).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    assert net.embedding.data_ptr() == target("qwen3").get_input_embeddings().weight.data_ptr()
    assert not any("embedding" in name or "rotary" in name for name in net.state_dict())
    assert target("qwen3").get_input_embeddings().weight.grad is None


def test_a_draft_vocabulary_keeps_the_rows_of_its_tokens() -> None:
    kept = torch.tensor([2, 3, 50, 95])
    small, whole = make("hidden", draft_tokens=kept), make("hidden")
    assert small.d2t.tolist() == kept.tolist()
    assert [int(small.t2d[token]) for token in (2, 3, 4, 50, 95)] == [0, 1, -1, 2, 3]
    for few, many in zip(
        unroll(small, texts(), features("qwen3"), 2), unroll(whole, texts(), features("qwen3"), 2), strict=True
    ):
        torch.testing.assert_close(few, many[..., kept])
    assert_drafting_is_the_unroll(small, "qwen3")


def test_texts_that_are_too_short() -> None:
    net = make("control")
    assert len(unroll(net, texts()[:, : DEPTHS + 2], features("qwen3").until(DEPTHS + 2), DEPTHS)) == DEPTHS
    with pytest.raises(ModelError, match="at least 6"):
        unroll(net, texts()[:, : DEPTHS + 1], features("qwen3").until(DEPTHS + 1), DEPTHS)
