"""Drafts that go on with tokens of the text: exact where sampled, plain decoding's where greedy, replayed as run."""

from __future__ import annotations

import random

import pytest
import torch

from draftgauge.core.signals import SignalName
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter
from draftgauge.judging.replay import replay
from draftgauge.models.loading import wrap
from draftgauge.policies.ngrams import NgramIndex, StoredTexts, with_stored
from draftgauge.policies.spec import make_policy
from draftgauge.verification import Sampling
from linear_costs import LinearCosts
from markov import Enumerator, MarkovModel, assert_same_law, law_of_model
from recordings import assert_same_steps, recorded_trace
from tiny import noisy, tiny_model, tokens

UNUSED = torch.Generator()  # the enumerator draws instead


class DraftsThenCopies:
    """Drafts up to some tokens, ends drafts by a coin, leaves out some last ones by what they are, and appends what the
    text predicts after them.
    """

    reads = frozenset({SignalName.TEXT})

    def __init__(self, limits: tuple[int, ...], tokens: int, ends: float = 0.0, drops_at: int = 0) -> None:
        self.limits, self.tokens, self.ends, self.drops_at = limits, tokens, ends, drops_at
        self.index = NgramIndex()

    def reset(self) -> None:
        self.index.reset()
        self.random = random.Random(0)
        self.step = 0

    def read(self, prompt_tokens) -> None:
        self.index.extend(prompt_tokens)

    def limit(self) -> int:
        self.drafted: list[int] = []
        self.left_out = False
        self.step += 1
        return self.limits[self.step % len(self.limits)]

    def keep_drafting(self, signal) -> bool:
        assert signal.depth == len(self.drafted) + 1
        self.drafted.append(signal.token)
        return self.random.random() >= self.ends

    def drops_last(self) -> bool:
        """Every token that a number divides, or none."""
        self.left_out = bool(self.drops_at) and self.drafted[-1] % self.drops_at == 0
        return self.left_out

    def extend(self, room: int) -> list[int]:
        tail, tokens = [*self.index.text, *(self.drafted[:-1] if self.left_out else self.drafted)], []
        while len(tokens) < min(room, self.tokens) and (match := self.index.match([*tail, *tokens])) is not None:
            tokens.append(match.token)
        return tokens

    def observe(self, step) -> None:
        assert step.drafted == len(self.drafted)
        assert step.dropped == int(self.left_out)
        self.index.extend(step.tokens)


@pytest.mark.parametrize(
    ("vocabulary", "count", "limits", "tokens_", "sampling"),
    [
        (2, 4, (0,), 2, Sampling(1.0)),
        (2, 4, (1,), 2, Sampling(0.7)),
        (2, 4, (0, 2), 3, Sampling(1.0)),
        (3, 3, (1,), 1, Sampling(1.0, top_k=2)),
        (3, 3, (0, 1), 2, Sampling(1.5, top_p=0.8)),
    ],
)
@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("drops_at", [0, 1, 2])
def test_sampled_decoding_has_the_targets_law(
    monkeypatch, vocabulary, count, limits, tokens_, sampling, drawn, drops_at
):
    target = MarkovModel.random(vocabulary, seed=vocabulary)
    model = target.noised(1.0, seed=9)
    drafter = LanguageModelDrafter(model, sampling=sampling if drawn else None, generator=UNUSED)
    policy, prompt = DraftsThenCopies(limits, tokens_, drops_at=drops_at), [1, 0, 1, 1, 0, 0, 1]
    appended = dropped = 0

    def program():
        nonlocal appended, dropped
        result = speculative_decode(target, drafter, policy, prompt, DecodingSettings(count, sampling), UNUSED)
        appended += sum(step.appended for step in result.steps)
        dropped += sum(step.dropped for step in result.steps)
        return tuple(result.tokens)

    assert_same_law(Enumerator(monkeypatch).law(program), law_of_model(target, prompt, count, sampling))
    assert appended > 0
    if drawn or drops_at != 2:  # which tokens are drafted decides where some of them are left out
        assert (dropped > 0) == (drops_at > 0 and not drawn and max(limits) > 0)


def test_greedy_output_and_steps_are_those_of_plain_decoding_and_of_replay():
    """Every mixture: drafts ended by the policy, by its limit, by the end of the output; with and without a copy."""
    settings, gamma_max = DecodingSettings(60), 8
    prompts = [tokens(11, seed=1).tolist(), tokens(6, seed=3).tolist() * 3]
    target, draft = wrap(tiny_model()), noisy(tiny_model(), 0.1)
    mixed = 0
    for drafter in (LanguageModelDrafter(wrap(draft)), PromptLookupDrafter()):
        trace = recorded_trace(target, drafter, prompts, settings, gamma_max)
        for limits, drops_at in (((0,), 0), ((2,), 0), ((3, 0, 5), 0), ((3, 0, 5), 1), ((4,), 3)):
            policy = DraftsThenCopies(limits, 3, ends=0.3, drops_at=drops_at)
            runs = [speculative_decode(target, drafter, policy, prompt, settings) for prompt in prompts]
            for run, prompt in zip(runs, prompts, strict=True):
                assert run.tokens == plain_decode(target, prompt, settings).tokens
                assert run.origins.count("text") == sum(step.accepted_text for step in run.steps)
                assert run.origins.count("accepted") == sum(step.accepted - step.accepted_text for step in run.steps)
            live = [step for run in runs for step in run.steps]
            assert_same_steps(live, replay(trace, DraftsThenCopies(limits, 3, ends=0.3, drops_at=drops_at)))
            mixed += sum(step.drafted > 0 and step.accepted_text > 0 for step in live)
    assert mixed > 5


@pytest.mark.parametrize("limits", [(0,), (2,)])
def test_what_is_copied_behind_an_end_token_was_not_accepted(limits):
    """A prompt that holds end tokens predicts what follows them; the output ends there, live as in replay."""
    target, drafter = MarkovModel.counting(4), LanguageModelDrafter(MarkovModel.counting(4))
    settings, prompt = DecodingSettings(20, end_tokens=frozenset({3})), [0, 1, 2, 3, 0, 1, 2, 3, 0]
    trace = recorded_trace(target, drafter, [prompt], settings, 8)
    live = speculative_decode(target, drafter, DraftsThenCopies(limits, 6), prompt, settings)
    assert live.tokens == [1, 2, 3]
    assert live.origins.count("text") == sum(step.accepted_text for step in live.steps) > 0
    assert [step.accepted for step in live.steps] == [3]
    assert_same_steps(live.steps, replay(trace, DraftsThenCopies(limits, 6)))


class Told(LanguageModelDrafter):
    """Notes how many of its tokens it is told were accepted."""

    def prefill(self, context: list[int]) -> None:
        super().prefill(context)
        self.told: list[int] = []

    def commit(self, accepted: int, tokens: list[int]) -> None:
        super().commit(accepted, tokens)
        self.told.append(accepted)


def test_a_speculative_model_keeps_up_with_copied_tokens():
    """The drafter's own cache is rolled back to what it drafted, and takes in what was copied."""
    model = wrap(tiny_model(seed=1))
    drafter = Told(wrap(tiny_model(seed=1)))  # always right
    for drops_at in (0, 1):
        policy = DraftsThenCopies((2, 0), 3, drops_at=drops_at)
        prompt = tokens(6, seed=3).tolist() * 3
        result = speculative_decode(model, drafter, policy, prompt, DecodingSettings(40))
        assert all(step.accepted >= step.drafted - step.dropped for step in result.steps)
        assert any(step.accepted_text > 0 for step in result.steps)
        assert drafter.told == [step.accepted - step.accepted_text for step in result.steps]


def test_with_stored_texts_greedy_output_is_plain_decodings_and_steps_are_those_of_replay():
    """The stored texts hold other outputs and, as it may happen, the very one, so that long drafts come from them."""
    settings, gamma_max = DecodingSettings(60), 6
    prompts = [tokens(11, seed=1).tolist(), tokens(6, seed=3).tolist() * 3, tokens(3, seed=4).tolist()]
    target, drafter = wrap(tiny_model()), LanguageModelDrafter(wrap(tiny_model(seed=2)))
    plain = [plain_decode(target, prompt, settings).tokens for prompt in prompts]
    trace = recorded_trace(target, drafter, prompts, settings, gamma_max)
    stored = StoredTexts([tokens(40, seed=7).tolist(), plain[0], plain[1][:30], [*plain[2][:-1], 5]])
    costs = LinearCosts(drafting=0.1, verifying=0.02)
    from_text = []
    for make in (
        lambda: make_policy("two-source", gamma_max, costs),
        lambda: make_policy("lookup:least=1,tokens=5", gamma_max),
        lambda: make_policy("lookup-else-stopping:least=2", gamma_max, costs),
    ):
        policies = [make(), make(), make()]
        with_stored(policies[1:], stored)
        runs = [speculative_decode(target, drafter, policies[1], prompt, settings) for prompt in prompts]
        assert [run.tokens for run in runs] == plain
        live = [step for run in runs for step in run.steps]
        replayed = replay(trace, policies[2])
        assert_same_steps(live, replayed)
        from_text.append((int(replayed.accepted_text.sum()), int(replay(trace, policies[0]).accepted_text.sum())))
    assert all(with_ > without for with_, without in from_text), from_text
