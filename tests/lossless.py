"""What every drafter must pass, on a target of few tokens: output as without it, and replay as it decodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from draftgauge.core.prompts import Prompt
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.drafters.base import Drafter, Drafting
from draftgauge.drafters.dense import draft_everywhere, draft_position_by_position
from draftgauge.judging.replay import replay
from draftgauge.models.base import CachedModel
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import make_policy
from draftgauge.traces.writer import make_trace
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from markov import Enumerator, assert_same_law, law_of_module
from recordings import assert_same_steps

MakeDrafter = Callable[[Drafting], Drafter]
UNUSED = torch.Generator()  # the enumerator draws instead


def assert_greedy_is_plain(target: CachedModel, make: MakeDrafter, prompt: list[int], length: int = 10) -> None:
    settings = DecodingSettings(length)
    plain = plain_decode(target, prompt, settings).tokens
    for name in ("fixed:6", "two-source", "svip"):
        output = speculative_decode(
            target, make(Drafting(frozenset())), make_policy(name, 6, LinearCosts()), prompt, settings
        )
        assert output.tokens == plain, name
        assert name in ("two-source",) or sum(step.drafted for step in output.steps) > 0, name


@torch.no_grad()
def assert_sampling_keeps_the_law(
    monkeypatch: pytest.MonkeyPatch, target: CachedModel, module: PreTrainedModel, make: MakeDrafter, prompt: list[int]
) -> None:
    """Three tokens, of the two likeliest each: eight texts."""
    sampling = Sampling(1.0, top_k=2)
    settings, drafter, drafted = DecodingSettings(3, sampling), make(Drafting(frozenset(), sampling, UNUSED)), set()

    def run() -> tuple[int, ...]:
        output = speculative_decode(target, drafter, FixedLength(2), prompt, settings, UNUSED)
        drafted.update(step.drafted for step in output.steps)
        return tuple(output.tokens)

    law = Enumerator(monkeypatch).law(run)
    assert 2 in drafted
    assert_same_law(law, law_of_module(module, prompt, 3, sampling), tolerance=1e-5)


def assert_replay_is_live(target: CachedModel, make: MakeDrafter, prompt: list[int], end_tokens: set[int]) -> int:
    """Drafts from all positions at once are those of each, and replay's steps the live loop's; accepted tokens."""
    how = Drafting(frozenset(end_tokens))
    settings, accepted = DecodingSettings(12, end_tokens=how.end_tokens), 0
    output = plain_decode(target, prompt, settings).tokens
    target.reset()
    target.forward(torch.tensor([*prompt, *output]))
    together = draft_everywhere(make(how), prompt, output, 5, target.spec.vocabulary)
    singly = draft_position_by_position(make(how), prompt, output, 5)
    assert together.tokens.tolist() == singly.tokens.tolist()
    assert (together.tokens >= 0).any()
    shown = (torch.tensor(drafts.shown) for drafts in (together, singly))
    torch.testing.assert_close(*shown, rtol=1e-4, atol=1e-4, equal_nan=True)
    record = record_prompt(target, make(how), Prompt(0, "0", "code", "test", ""), prompt, RecordingPlan(settings, 5))
    trace = make_trace([record], settings.max_new_tokens)
    for gamma in (2, 5):
        live = speculative_decode(target, make(how), FixedLength(gamma), prompt, settings)
        assert_same_steps(live.steps, replay(trace, FixedLength(gamma)))
        accepted += sum(step.accepted for step in live.steps)
    return accepted
