"""What is recorded for GPUs, with recordings that run again: they read copies of their arguments, made at first."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from drafters.test_checkpoints import FIXTURES, LAYOUTS, drafter_of
from drafters.test_checkpoints import target_module as checkpoint_target
from drafters.test_reuse_lossless import BLOCKWISE, VARIANTS, build_drafter, build_net, target_module
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.decoding.plain import plain_decode
from draftgauge.drafters import anchors
from draftgauge.drafters.anchors import AnchorCache
from draftgauge.drafters.reuse import live
from draftgauge.models.graphs import Recorded
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from tiny import tokens


class Again:
    """A pool whose recordings run again what they recorded, and write to where their first results lie."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.captured = 0

    def anew(self) -> Again:
        return self

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1
        result = run()

        def replay() -> Any:
            for kept, new in zip(tree_leaves(result), tree_leaves(run()), strict=True):
                if isinstance(kept, torch.Tensor):
                    kept.copy_(new.clone())
            return result

        return torch.inference_mode()(replay)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Again:
    pool = Again()
    monkeypatch.setattr(live, "graph_pool", lambda device: pool)
    return pool


@pytest.mark.parametrize("made", [*VARIANTS[::2], *LAYOUTS], ids=str)
def test_drafts_are_those_of_passes_that_just_run(made: Any, pool: Again, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "FIRST_CAPACITY", 16)  # it grows while it decodes
    published = isinstance(made, str)
    target = wrap(checkpoint_target() if published else target_module("qwen3"))
    settings, steps = DecodingSettings(12), []
    prompts = tokens(9, vocabulary=6).tolist(), tokens(70, 1, 6).tolist()
    plain = [plain_decode(target, prompt, settings).tokens for prompt in prompts]
    for eager in (False, True):
        if eager:
            monkeypatch.setattr(live, "graph_pool", lambda device: None)
        net = None if published else build_net(target.module, made)
        new = drafter_of(FIXTURES / made, target) if published else build_drafter(target, net)
        for prompt, expected in zip(prompts, plain, strict=True):
            found = speculative_decode(target, new, FixedLength(4), prompt, settings)
            assert found.tokens == expected
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

    double = Recorded(run, pool, lambda: cache.capacity)
    for value in (1.0, 2.0, 3.0):
        assert double((torch.tensor([value]), 2), torch.tensor([0.5])).tolist() == [2 * value + 0.5]
    assert pool.captured == 1
    assert called[1][0] is called[-1][0]  # its own memory
    assert double((torch.tensor([1.0]), 3), torch.tensor([0.5])).tolist() == [3.5]
    assert pool.captured == 1  # another number is another function
    cache.extend(600)
    cache.pairs[0][0][..., :1, :] = 1.0
    for captured in (1, 2):
        assert double((torch.tensor([1.0]), 2), torch.tensor([0.5])).tolist() == [4.5]
        assert pool.captured == captured


def test_what_a_recording_returned_is_read_where_it_lies(pool: Again) -> None:
    grow = Recorded(lambda depth, chain, token: (depth + 1, (*chain, token + 1)), pool)
    for start in (10.0, 20.0, 30.0, 40.0):
        depth, chain = 0, (torch.tensor([start]),)
        for drafted in range(3):
            depth, chain = grow(depth, chain, torch.tensor([start + drafted]))
        assert [float(each) for each in chain] == [start, start + 1, start + 2, start + 3]
    assert pool.captured == 3
    (read, _), (later, _) = list(grow._known.values())[1:]
    assert read[1] is later[1]  # the chain's first token is copied once


@pytest.mark.parametrize("made", [VARIANTS[2], BLOCKWISE[1], "eagle3-sglang"], ids=str)
def test_a_drafter_is_freed_with_its_last_reference(made: Any, pool: Again) -> None:
    published = isinstance(made, str)
    target = wrap(checkpoint_target() if published else target_module("qwen3"))
    new = drafter_of(FIXTURES / made, target) if published else build_drafter(target, build_net(target.module, made))
    speculative_decode(target, new, FixedLength(4), [1, 2, 3], DecodingSettings(8))
    kept = weakref.ref(new)
    gc.disable()
    try:
        del new
        assert kept() is None
    finally:
        gc.enable()
