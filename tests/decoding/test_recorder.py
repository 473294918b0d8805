"""The recorder: all positions together are the same as one by one; replay is as live, its seconds too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.prompts import Prompt
from draftgauge.core.signals import SignalName
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters import LanguageModelDrafter, PromptLookupDrafter, dense
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.dense import DenseDrafts, draft_densely, draft_position_by_position
from draftgauge.judging.replay import backlogs, replay
from draftgauge.meter import MeterPlan, measure_costs
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Step, reads_of
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.spec import make_policy
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import PromptRecord
from draftgauge.traces.writer import make_trace
from draftgauge.verification import Sampling
from markov import MarkovModel
from recordings import assert_same_steps
from timed_work import Clock, TimedDrafter, TimedHybrid, TimedModel
from tiny import noisy, tiny_model, tokens

GAMMA_MAX = 6
PROMPT = Prompt(3, "three", "code", "test", "some text")


def related_pair() -> tuple[CachedModel, CachedModel]:
    """A target and a draft that agrees with it now and then: the target's weights with noise."""
    return wrap(tiny_model()), wrap(noisy(tiny_model(), 0.15))


def greedy(target: CachedModel, prompt: list[int], count: int = 40, ends: frozenset[int] = frozenset()) -> list[int]:
    return plain_decode(target, prompt, DecodingSettings(count, end_tokens=ends)).tokens


def record(
    target: CachedModel, drafter: Drafter, prompt: list[int], count: int = 40, gamma_max: int = GAMMA_MAX, **ends
) -> PromptRecord:
    plan = RecordingPlan(DecodingSettings(count, **ends), gamma_max)
    made = record_prompt(target, drafter, PROMPT, prompt, plan)
    made.validate()
    return made


def assert_same_drafts(fast: DenseDrafts, slow: DenseDrafts) -> None:
    np.testing.assert_array_equal(fast.tokens, slow.tokens)
    np.testing.assert_allclose(fast.shown, slow.shown, atol=2e-5)


def drafted(draft: CachedModel, prompt: list[int], output: list[int], most: int = GAMMA_MAX, **options) -> DenseDrafts:
    """From all positions together, which is as from one after the other."""
    fast = draft_densely(draft, prompt, output, most, **options)
    slow = draft_position_by_position(LanguageModelDrafter(draft, **options), prompt, output, most)
    assert_same_drafts(fast, slow)
    return fast


def test_drafts_end_with_an_end_token() -> None:
    target, draft = related_pair()
    prompt = tokens(9, seed=3).tolist()
    plain = greedy(target, prompt)
    ends = frozenset({plain[30], plain[-1]})  # one ends the output, both end drafts
    output = greedy(target, prompt, ends=ends)
    assert output[-1] in ends
    fast = drafted(draft, prompt, output, end_tokens=ends)
    ended = np.isin(fast.tokens, list(ends))
    assert ended[:, :-1].any()
    assert (fast.tokens[:, 1:][ended[:, :-1]] == -1).all()


@pytest.mark.parametrize(("context", "prompt", "gamma"), [(20, 10, 6), (25, 10, 6), (8, 10, 6), (500, 1, 1)])
def test_drafts_are_shorter_where_the_drafts_context_ends(context: int, prompt: int, gamma: int) -> None:
    target, draft = related_pair()
    draft.spec = type(draft.spec)(**{**vars(draft.spec), "context": context})
    text = tokens(prompt, seed=4).tolist()
    output = greedy(target, text, 20)
    lengths = (drafted(draft, text, output, gamma).tokens >= 0).sum(1)
    np.testing.assert_array_equal(lengths, np.clip(context + 1 - prompt - np.arange(20), 0, gamma))


def test_chunks_and_a_padded_vocabulary_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = related_pair()
    prompt = tokens(5, seed=6).tolist()
    output = greedy(target, prompt)
    whole = drafted(draft, prompt, output, vocabulary=50)
    assert whole.tokens.max() < 50
    monkeypatch.setattr(dense, "CHUNK", 7)
    assert_same_drafts(draft_densely(draft, prompt, output, GAMMA_MAX, vocabulary=50), whole)


def test_tokens_that_the_draft_does_not_have() -> None:
    target, _ = related_pair()
    draft = wrap(tiny_model(seed=1, vocab_size=60))
    prompt = [*tokens(5, seed=6).tolist(), 95]
    output = greedy(target, prompt)
    assert max(output[:-1]) >= 60
    drafted(draft, prompt, output, vocabulary=96)


def test_the_record_of_a_prompt() -> None:
    target, draft = related_pair()
    prompt = tokens(11, seed=1).tolist()
    made = record(target, LanguageModelDrafter(draft), prompt)
    assert made.info == type(made.info)(3, "three", "code", "test", 11, 40, "length", tuple(prompt))
    assert made.token.tolist() == greedy(target, prompt)
    target.reset()
    logits = target.forward(torch.tensor([*prompt, *made.token.tolist()[:-1]]))[len(prompt) - 1 :]
    bits = torch.distributions.Categorical(logits=logits).entropy() / np.log(2)
    np.testing.assert_allclose(made.target_entropy, bits, atol=2e-5)


def test_prompt_lookup_is_recorded_as_it_drafts_live() -> None:
    target, _ = related_pair()
    prompt = [5, 6, 7, 8, 5, 6]
    made = record(target, PromptLookupDrafter(), prompt, 30)
    for position in (0, 1, 13, 29):
        live = PromptLookupDrafter()
        live.prefill([*prompt, *made.token.tolist()[:position]])
        expected = live.propose(GAMMA_MAX, None).tokens
        assert made.draft_token[position, : made.drafted[position]].tolist() == expected
    assert made.draft_token[0].tolist()[:4] == [7, 8, 5, 6]
    assert (made.confidence[made.draft_token >= 0] == 1).all()


class Looking(FixedLength):
    """Reads every signal."""

    reads = frozenset(SignalName)


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("kind", ["language_model", "prompt_lookup"])
def test_replay_is_live_step_by_step(kind: str, ends: bool) -> None:
    target, draft = related_pair()
    prompt = [9, 4, 9, 4, *tokens(7, seed=8).tolist()]
    end_tokens = frozenset({greedy(target, prompt)[33]} if ends else ())
    looked_up = PromptLookupDrafter(end_tokens=end_tokens)
    drafter = LanguageModelDrafter(draft, end_tokens) if kind == "language_model" else looked_up
    trace = make_trace([record(target, drafter, prompt, end_tokens=end_tokens)], max_new_tokens=40)
    settings = DecodingSettings(40, end_tokens=end_tokens)
    for gamma in range(GAMMA_MAX + 1):
        live = speculative_decode(target, drafter, FixedLength(gamma), prompt, settings)
        assert_same_steps(live.steps, replay(trace, FixedLength(gamma)))


def test_policies_see_live_what_was_recorded() -> None:
    target, draft = related_pair()
    prompt = tokens(11, seed=1).tolist()
    drafter = LanguageModelDrafter(draft)
    made = record(target, drafter, prompt)
    position = 0
    for step in speculative_decode(target, drafter, Looking(3), prompt, DecodingSettings(40)).steps:
        shown = np.array([signal[1:4] for signal in step.signals]).reshape(-1, 3).T
        recorded = np.stack([made.confidence, made.entropy, made.margin])[:, position, : step.drafted]
        np.testing.assert_allclose(shown, recorded, atol=2e-5)
        position += step.committed
        np.testing.assert_allclose(step.target_entropy, made.target_entropy[position - 1], atol=2e-5)
    assert position == 40


def test_what_cannot_be_recorded_is_refused() -> None:
    target, draft = related_pair()
    with pytest.raises(DraftgaugeError, match="gamma_max"):
        record(target, LanguageModelDrafter(draft), [1, 2], gamma_max=0)
    with pytest.raises(DraftgaugeError, match="stop strings"):
        RecordingPlan(DecodingSettings(4, stop_strings=("x",)))
    for drafter, generator in ((LanguageModelDrafter(draft), None), (PromptLookupDrafter(), torch.Generator())):
        with pytest.raises(DraftgaugeError, match=r"needs a draft model .* and a random generator"):
            record_prompt(
                target, drafter, PROMPT, [1, 2], RecordingPlan(DecodingSettings(4, Sampling(1.0))), generator=generator
            )
    with pytest.raises(DraftgaugeError, match="greedy drafts"):
        record(target, LanguageModelDrafter(draft, sampling=Sampling(1.0)), [1, 2])


TIMED_GAMMA = 5
LOOKING = 0.4
STEP = 1.0
KERNELS = {  # seconds of a pass over 1, 2, ... tokens
    "a single row alone": (10.0, 15.0, 16.0, 17.0, 18.0, 19.0),
    "a slow single row, and rows in fours": (15.0, 10.0, 14.0, 12.0, 22.0, 23.0),
    "recurrent": (10.0, 12.0, 14.0, 16.0, 18.0, 20.0),
}
APPENDING = ("lookup:least=1,tokens=3", "lookup-else-stopping:least=1,tokens=3", "two-source")
POLICIES = ("no-draft", "fixed:1", "fixed:4", "hf-heuristic", "stopping", "drops", *APPENDING)
POLICIES += ("cumulative-confidence:threshold=0.05",)


class DropsTheLast(FixedLength):
    """Drafts a fixed length, and leaves out the last token."""

    def drops_last(self) -> bool:
        return True


class Machine(Clock):
    """A noisy one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.rng = np.random.default_rng(0)

    def spend(self, seconds: float) -> None:
        super().spend(seconds * self.rng.lognormal(0.0, 0.05))


def modelled(curve: CostCurve, prompt: int, steps: list[Step], policy: object) -> float:
    """Seconds of the steps of one output, as replay models them."""
    drafted, beyond, accepted, committed = np.array(
        [(step.drafted, step.appended - step.dropped, step.accepted, step.committed) for step in steps]
    ).T
    contexts = prompt + np.concatenate([[0], np.cumsum(committed)[:-1]])
    seconds = curve.step_seconds(drafted, contexts, reads_of(policy), beyond).sum()  # type: ignore[arg-type]
    waiting = backlogs(np.zeros(len(steps), np.int64), drafted, accepted, curve)
    back = curve.rollback_seconds(drafted + beyond, accepted).sum()
    return float(seconds + back + curve.catch_up_seconds(waiting, drafted).sum())


def measured(machine: Machine, kernel: str) -> tuple[CachedModel, TimedDrafter, CostCurve]:
    """A pair whose passes take time on the machine, and its cost curve."""
    verifying, drafting = KERNELS[kernel], (2.0, 3.0)  # by tokens, more take as long as the last
    large = MarkovModel.random(96, seed=1)
    small = large.noised(1.0, seed=2)

    def seconds(tokens: int) -> float:
        return verifying[min(tokens, 6) - 1]

    recurrent = kernel == "recurrent"
    target = TimedHybrid(large, machine, seconds, 2.0) if recurrent else TimedModel(large, machine, seconds)
    drafter = TimedDrafter(TimedModel(small, machine, lambda tokens: drafting[min(tokens, 2) - 1]), LOOKING, STEP)
    plan = MeterPlan(tokens(60, seed=1).tolist(), (30, 90), gamma_max=TIMED_GAMMA, seconds=4_000.0)
    return target, drafter, measure_costs(target, drafter, plan, np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore:cost curve")
@pytest.mark.parametrize("kernel", KERNELS)
def test_modelled_seconds_are_those_of_the_live_loop(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """Also where tokens are left out, or appended from a prompt that repeats itself."""
    target, drafter, curve = measured(Machine(monkeypatch), kernel)
    assert curve.rollback == pytest.approx(
        [1.0 + 2.0 * kept for kept in range(1, 6)] * (kernel == "recurrent"), rel=0.1
    )
    others = [seconds / KERNELS[kernel][0] for seconds in KERNELS[kernel]]
    assert [(seconds - STEP) / (curve.verify[0][0] - STEP) for seconds in curve.verify[0]] == pytest.approx(
        others, rel=0.08
    )
    settings = DecodingSettings(max_new_tokens=40)
    for copies, spec in itertools.product((1, 2), POLICIES):
        policy = DropsTheLast(4) if spec == "drops" else make_policy(spec, TIMED_GAMMA, curve)
        live, model, steps = 0.0, 0.0, list[Step]()
        for seed in range(2):
            prompt = tokens(20, seed=seed).tolist() * copies
            result = speculative_decode(target, drafter, policy, prompt, settings)
            live += result.decode_seconds
            model += modelled(curve, len(prompt), result.steps, policy)
            steps += result.steps
        assert spec != "drops" or sum(step.dropped for step in steps) > 10
        if copies == 2:
            assert (sum(step.appended for step in steps) > 15) == (spec in APPENDING), spec
        assert model == pytest.approx(live, rel=0.03), spec
