"""Draft trees against a slow reference that enumerates them, and accepted lengths against the text."""

from __future__ import annotations

import pytest
import torch

from draftgauge.diagnostics.evaluation import TreeShape, grow, tree_acceptance
from draftgauge.diagnostics.texts import HeldOutText
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.reuse import drafting
from draftgauge.drafters.reuse.drafting import Chain
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import batch_features
from reuse_nets import DESIGNS, net_for, target, texts

Node = tuple[tuple[int, ...], float]


def begun(net: ReuseNet, model: CachedModel, text: list[int]) -> tuple[torch.Tensor, AnchorCache, Chain]:
    """The logits of the first token drafted after a text, and the chain."""
    seen = batch_features(model.module, torch.tensor([text]), net.config.tap_plan).until(len(text) - 1)
    parts = [None if part is None else part[0] for part in (seen.hidden, seen.keys, seen.values)]
    cache = drafting.begin(net)
    logits, chain = drafting.take_in(net, cache, torch.tensor(text[1:]), *parts)
    return logits[0], cache, chain


def enumerated(net: ReuseNet, model: CachedModel, text: list[int], shape: TreeShape) -> dict[tuple[int, ...], float]:
    """All candidates by path, each grown by steps of its own from the root."""

    def after(path: tuple[int, ...]) -> torch.Tensor:
        logits, cache, chain = begun(net, model, text)
        for token in path:
            stepped, chain = drafting.step(net, cache, chain, torch.tensor([token]))
            logits = stepped[0]
        return logits.log_softmax(-1)

    found: dict[tuple[int, ...], float] = {}
    frontier: list[Node] = [((), 0.0)]
    for _ in range(shape.depth):
        level: list[Node] = []
        for path, score in frontier:
            top = after(path).topk(shape.top_k)
            level += [((*path, int(t)), score + float(s)) for s, t in zip(top.values, top.indices, strict=True)]
        found |= dict(level)
        frontier = sorted(level, key=lambda node: -node[1])[: shape.top_k]
    return found


@pytest.mark.parametrize("design", DESIGNS)
def test_a_tree_is_what_enumeration_grows(design: str) -> None:
    model = target()
    net, text, shape = net_for(model, design), [1, 2, 3, 4, 5, 1, 2], TreeShape(depth=3, top_k=3, tokens=10)
    logits, cache, chain = begun(net, model, text)
    parents, tokens, scores = grow(net, cache, chain, logits, shape)
    paths: list[tuple[int, ...]] = []
    for parent, token in zip(parents.tolist(), tokens.tolist(), strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else (token,))
    expected = enumerated(net, model, text, shape)
    assert set(paths) == set(expected)
    assert scores.tolist() == pytest.approx([expected[path] for path in paths], abs=1e-3)


def test_a_tree_that_holds_every_path_is_accepted_to_its_depth() -> None:
    model = target()
    vocabulary = model.spec.vocabulary
    text = texts(model)[3]
    shape = TreeShape(depth=2, top_k=vocabulary, tokens=vocabulary + vocabulary**2 + 1)
    ((_, steps),) = tree_acceptance(net_for(model, "hidden"), model.module, [text], shape)
    assert steps == -(-len(text.output) // 3)


def test_trees_take_in_a_draft_vocabulary() -> None:
    model = target()
    text = HeldOutText((1, 2, 3), (3, 3, 3, 3))  # token 3 is in the draft vocabulary of 4, tokens 4 and 5 are not
    net = net_for(model, "control", draft_vocabulary=4)
    shape = TreeShape(depth=3, top_k=4, tokens=100)
    assert tree_acceptance(net, model.module, [text], shape)[0][1] == 1
    outside = HeldOutText((1, 2, 3), (4, 4, 4, 4))
    assert tree_acceptance(net, model.module, [outside], shape)[0][1] == 4
