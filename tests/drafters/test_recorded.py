"""What is recorded for GPUs, with recordings that run again: they read copies of their arguments, made at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from drafters.test_checkpoints import FIXTURES, LAYOUTS, drafter_of
from drafters.test_checkpoints import target_module as checkpoint_target
from drafters.test_reuse_lossless import VARIANTS, build_drafter, build_net, target_module
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.decoding.plain import plain_decode
from draftgauge.drafters import recorded
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.recorded import Recorded
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from tiny import tokens


class Again:
    """A pool whose recordings run what they recorded."""

    def __init__(self) -> None:
        self.captured = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1
        return run


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Again:
    pool = Again()
    monkeypatch.setattr(recorded, "graph_pool", lambda device: pool)
    return pool


@pytest.mark.parametrize("made", [*VARIANTS, *LAYOUTS], ids=str)
def test_drafts_are_those_of_passes_that_just_run(made: Any, pool: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    published = isinstance(made, str)
    target = wrap(checkpoint_target() if published else target_module("qwen3"))
    settings, steps = DecodingSettings(24), []
    for eager in (False, True):
        if eager:
            monkeypatch.setattr(recorded, "graph_pool", lambda device: None)
        net = None if published else build_net(target.module, made)
        new = drafter_of(FIXTURES / made, target) if published else build_drafter(target, net)
        for prompt in (tokens(9, vocabulary=6).tolist(), tokens(70, 1, 6).tolist()):
            found = speculative_decode(target, new, FixedLength(4), prompt, settings)
            assert found.tokens == plain_decode(target, prompt, settings).tokens
            steps.append([(step.drafted, step.accepted) for step in found.steps])
    assert steps[:2] == steps[2:]
    assert pool.captured > 1


def test_a_recording_reads_what_it_is_given_now_and_ends_where_the_cache_grows(pool: Again) -> None:
    cache = AnchorCache([1], 2, torch.zeros(1), lambda length, like: (like.new_zeros(length, 2),) * 2)
    cache.extend(3)
    called = []

    def run(pair: tuple[torch.Tensor, int], other: torch.Tensor) -> torch.Tensor:
        called.append(pair)
        return pair[0] * pair[1] + other + cache.pairs[0][0].sum()

    double = Recorded(run, cache)
    for value in (1.0, 2.0, 3.0):
        assert double((torch.tensor([value]), 2), torch.tensor([0.5])).tolist() == [2 * value + 0.5]
    assert (pool.captured, len(called)) == (1, 3)
    assert called[1][0] is called[2][0]  # its own memory
    assert double((torch.tensor([1.0]), 3), torch.tensor([0.5])).tolist() == [3.5]
    assert pool.captured == 1  # another number is another function
    cache.extend(600)
    cache.pairs[0][0][..., :1, :] = 1.0
    for captured in (1, 2):
        assert double((torch.tensor([1.0]), 2), torch.tensor([0.5])).tolist() == [4.5]
        assert pool.captured == captured
