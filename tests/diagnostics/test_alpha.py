"""Teacher-forced acceptance and draft trees, against real decoding and a slow reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import TreeShape, grow, live_acceptance, tree_acceptance
from draftgauge.diagnostics.texts import HeldOutText, agreement, depth_counts, labelled_depths
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.dense import draft_position_by_position
from draftgauge.drafters.reuse import drafting
from draftgauge.drafters.reuse.drafting import Chain
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import attach_taps, batch_features
from draftgauge.traces.trace import accepted_lengths
from reuse_nets import DESIGNS, SETTINGS, VOCABULARY, net_for, target, texts
from walks import walked

DEPTHS = 4


def follower(net: ReuseNet, model: CachedModel, settings: DecodingSettings = SETTINGS) -> ReuseDrafter:
    taps = attach_taps(model, net.config.tap_plan)
    return ReuseDrafter(net, model, taps, settings.end_tokens)


def drafted_from_every_position(net: ReuseNet, model: CachedModel, text: HeldOutText) -> list[int]:
    """Accepted lengths found by drafting, one position after the other."""
    drafter = follower(net, model)
    model.forward(torch.tensor(text.tokens))
    drafts = draft_position_by_position(drafter, list(text.prompt), list(text.output), DEPTHS)
    return accepted_lengths(np.array(text.output, np.int32), drafts.tokens).tolist()


@pytest.mark.parametrize(("design", "draft_vocabulary"), [*((design, 0) for design in DESIGNS), ("hidden", 4)])
def test_lengths_are_those_of_drafting_from_every_position(
    monkeypatch: pytest.MonkeyPatch, design: str, draft_vocabulary: int
) -> None:
    model = target()
    net, held_out = net_for(model, design, draft_vocabulary=draft_vocabulary), texts(model)
    monkeypatch.setattr("draftgauge.diagnostics.texts.BATCH_TOKENS", 60)  # several batches, some padded
    agreed = agreement(net, model.module, held_out, DEPTHS)
    forced = [each.cumprod(-1).sum(-1) for each in agreed]
    assert [len(lengths) for lengths in forced] == [len(text.output) for text in held_out]
    for lengths, text in zip(forced, held_out, strict=True):
        assert lengths.tolist() == drafted_from_every_position(net, model, text)
    assert any(lengths.any() for lengths in forced), "the drafter never agrees: the test shows nothing"


@pytest.mark.parametrize("design", DESIGNS)
def test_live_counts_are_those_of_the_drafts_on_the_way(design: str) -> None:
    model = target()
    net, held_out = net_for(model, design), texts(model)
    end = frozenset({held_out[2].output[7]})
    settings = DecodingSettings(max_new_tokens=24, end_tokens=end)
    held_out = texts(model, settings=settings)
    assert len({len(text.output) for text in held_out}) > 1, "no output ends early: the test shows less"
    lengths = [each.cumprod(-1).sum(-1) for each in agreement(net, model.module, held_out, DEPTHS)]
    live, mismatched = live_acceptance(model, follower(net, model, settings), held_out, DEPTHS, settings)
    assert mismatched == 0
    for n, text in enumerate(held_out):
        accepted, drafted = walked(text, lengths[n], labelled_depths(text, DEPTHS), settings.max_new_tokens)
        reached, right = depth_counts(accepted, drafted, DEPTHS)
        assert live[n][0].tolist() == reached.tolist()
        assert live[n][1].tolist() == right.tolist()


def test_live_outputs_that_are_not_the_plain_ones_are_counted() -> None:
    model = target()
    first, *others = texts(model, 3)
    changed = [replace(text, output=(*text.output[:-1], (text.output[-1] + 1) % VOCABULARY)) for text in others]
    drafter = follower(net_for(model, "hidden"), model)
    assert live_acceptance(model, drafter, [first, *changed], DEPTHS, SETTINGS)[1] == 2


def test_counts_by_depth() -> None:
    # three drafts: rejected at once, accepted once of a known four, accepted to the end of a text that had two tokens
    # left
    reached, accepted = depth_counts(np.array([0, 1, 2]), np.array([4, 4, 2]), 4)
    assert reached.tolist() == [3, 2, 0, 0]
    assert accepted.tolist() == [2, 1, 0, 0]


def test_labelled_depths_end_with_the_text() -> None:
    text = HeldOutText((5, 6), (1, 2, 3, 4, 5))
    assert labelled_depths(text, 3).tolist() == [3, 3, 3, 2, 1]
    assert labelled_depths(HeldOutText((5,), (1, 2, 3)), 3).tolist() == [0, 2, 1]


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
