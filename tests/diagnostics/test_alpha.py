"""Teacher-forced acceptance equals what drafting finds, position by position and in real decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.evaluation import live_acceptance
from draftgauge.diagnostics.texts import HeldOutText, agreement, depth_counts, labelled_depths
from draftgauge.drafters.dense import draft_position_by_position
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import attach_taps
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
