"""What replay charges for catching up is what drafters really take in before they draft."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from draftgauge.core.signals import NO_SIGNALS, SignalName
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import Drafter, LanguageModelDrafter, PromptLookupDrafter
from draftgauge.drafters.base import Draft, backlog_of, keeps_drafted
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.judging.replay import backlogs
from draftgauge.models.taps import attach_taps
from draftgauge.policies.base import PolicyBase, Step
from draftgauge.policies.ngrams import NgramIndex
from draftgauge.traces.costs import CostCurve
from markov import MarkovModel
from reuse_nets import net_for
from reuse_nets import target as tiny_target

ROW = ((1.0,) * 5,)
COSTS = CostCurve((10,), ROW, ROW, (1.0,), "uncompressed", "cpu", "float32", catch_up=(0.0,) * 64)


class Any(PolicyBase):
    """Any length, at random, with runs of steps that draft nothing."""

    reads = NO_SIGNALS

    def __init__(self) -> None:
        self.random = random.Random(0)

    def limit(self) -> int:
        return self.random.choice([0, 0, 1, 1, 2, 4])


class CopiesOrDrafts(Any):
    """Drafts any length, and appends what followed the last token the last time."""

    reads = frozenset({SignalName.TEXT})

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.index = NgramIndex()
        self.index.extend(prompt_tokens)

    def extend(self, room: int) -> list[int]:
        return self.index.continuation(min(room, 3), least=1)

    def observe(self, step: Step) -> None:
        self.index.extend(step.tokens)


class Watched:
    """Notes the backlog before every proposal."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.noted: list[int] = []
        self.prefill, self.commit = drafter.prefill, drafter.commit

    def propose(self, limit: int, *options: object) -> Draft:
        self.noted.append(backlog_of(self.drafter))
        return self.drafter.propose(limit, *options)  # type: ignore[arg-type]


def check(
    target: object, drafter: Drafter, prompts: list[list[int]], among: set[int], policy: PolicyBase | None = None
) -> int:
    """Every proposal after the first finds the backlog that replay computes from the steps; steps that only copied."""
    compared, copied, policy = [], 0, policy or Any()
    costs = replace(COSTS, keeps_drafted=keeps_drafted(drafter))
    for prompt in prompts:
        watched = Watched(drafter)
        steps = speculative_decode(target, watched, policy, prompt, DecodingSettings(60)).steps  # type: ignore[arg-type]
        columns = np.array([(step.drafted, step.accepted) for step in steps], np.int64).T
        computed = backlogs(np.zeros(len(steps), np.int64), *columns, costs)[columns[0] > 0].tolist()
        assert watched.noted[1:] == computed[1:]  # before the first, a drafter may have taken in the whole prompt
        compared += computed[1:]
        copied += sum(step.accepted > 0 for step in steps if not step.drafted)
    assert set(compared) >= among
    return copied


@pytest.mark.parametrize(("noise", "among"), [(0.0, {2, 3, 4}), (0.8, {1, 2, 3, 4})])
def test_a_language_model_takes_in_its_own_token_and_the_last_one_of_a_draft_accepted_whole(
    noise: float, among: set[int]
) -> None:
    target = MarkovModel.random(8, seed=0)
    check(target, LanguageModelDrafter(target.noised(noise, seed=1)), [[3, 1, 2], [1, 1], [5, 4]], among)


def test_a_drafter_that_reads_its_target_takes_in_all_committed_tokens() -> None:
    target = tiny_target()
    net = net_for(target, "hidden")
    taps = attach_taps(target, net.config.tap_plan)
    check(target, ReuseDrafter(net, target, taps), [[3, 1, 2], [1, 1, 4, 4], [5, 4, 0]], {1, 2, 3})


def test_prompt_lookup_has_nothing_to_take_in() -> None:
    target = MarkovModel.random(8, seed=0)
    watched = Watched(PromptLookupDrafter())
    speculative_decode(target, watched, Any(), [3, 1, 2, 3, 1, 2], DecodingSettings(40))  # type: ignore[arg-type]
    assert set(watched.noted) == {0}


def test_a_step_that_only_copies_leaves_all_that_it_commits_to_take_in() -> None:
    target = MarkovModel.random(3, seed=0)
    drafters = [LanguageModelDrafter(target.noised(noise, seed=1)) for noise in (0.0, 0.8)]
    assert sum(check(target, drafter, [[0, 1, 2, 0, 1]], set(), CopiesOrDrafts()) for drafter in drafters) > 3
