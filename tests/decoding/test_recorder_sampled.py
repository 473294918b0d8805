"""The trace of sampled decoding: replayed, it is live decoding given its output, however random draws fall."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from draftgauge.core.prompts import Prompt
from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.judging.replay import replay, signal_arrays
from draftgauge.models.loading import wrap
from draftgauge.policies.base import Policy
from draftgauge.policies.cumulative_confidence import CumulativeConfidence
from draftgauge.policies.fixed import FixedLength
from draftgauge.policies.hf_confidence import ConfidenceThreshold
from draftgauge.traces.run import make_trace
from draftgauge.traces.sampled import drawn, path_chances, reach_chances
from draftgauge.traces.trace import PromptRecord
from draftgauge.verification import Sampling, probabilities
from markov import Enumerator, MarkovModel
from synthetic import coin_walks
from tiny import tiny_model, tokens

UNUSED = torch.Generator()  # the enumerator draws instead
SOURCE = Prompt(0, "zero", "code", "test", "some text")

Figures = tuple[float, ...]  # steps, drafted, accepted; of several policies one after the other


class Pair:
    """A toy target and a drafter of it, with what they decode."""

    def __init__(
        self,
        vocabulary: int,
        count: int,
        sampling: Sampling,
        ends: tuple[int, ...] = (),
        context: int = 1000,
        noise: float = 1.5,
    ) -> None:
        self.target = MarkovModel.random(vocabulary, seed=vocabulary)
        draft = self.target.noised(noise, seed=9)
        draft.spec = type(draft.spec)(**{**vars(draft.spec), "context": context})
        self.settings = DecodingSettings(count, sampling, frozenset(ends))
        self.draft, self.prompt = draft, [1, 0]

    def drafter(self, generator: torch.Generator) -> LanguageModelDrafter:
        return LanguageModelDrafter(self.draft, self.settings.end_tokens, self.settings.sampling, generator)

    def record(self, gamma_max: int, generator: torch.Generator = UNUSED) -> PromptRecord:
        plan = RecordingPlan(self.settings, gamma_max)
        return record_prompt(self.target, self.drafter(generator), SOURCE, self.prompt, plan, generator)

    def replay(self, policies: Sequence[Policy], gamma_max: int) -> tuple[tuple[int, ...], Figures]:
        record = self.record(gamma_max)
        figures = np.zeros((len(policies), 3))
        for chance, walk in coin_walks(make_trace([record], self.settings.max_new_tokens)):
            outcomes = [replay(walk, policy) for policy in policies]
            figures += chance * np.array([(o.steps[0], o.drafted[0], o.accepted[0]) for o in outcomes])
        return tuple(record.token.tolist()), tuple(figures.flatten().tolist())

    def live(self, policy: Policy, generator: torch.Generator = UNUSED) -> tuple[tuple[int, ...], Figures]:
        out = speculative_decode(self.target, self.drafter(generator), policy, self.prompt, self.settings, generator)
        figures = len(out.steps), sum(s.drafted for s in out.steps), sum(s.accepted for s in out.steps)
        return tuple(out.tokens), figures


def by_output(
    monkeypatch: pytest.MonkeyPatch, program: Callable[[], tuple[tuple[int, ...], Figures]]
) -> dict[tuple[int, ...], np.ndarray]:
    """For every output its probability, and that times the mean of each figure given the output."""
    sums: dict[tuple[int, ...], Any] = defaultdict(int)
    with monkeypatch.context() as patch:
        for (output, figures), chance in Enumerator(patch).law(program).items():
            sums[output] = sums[output] + chance * np.array([1.0, *figures])
    return dict(sums)


CASES = {
    "two tokens": (Pair(2, 3, Sampling(1.0)), 2),
    "top-k": (Pair(3, 3, Sampling(1.3, top_k=2)), 2),
    "end token": (Pair(3, 3, Sampling(1.2), ends=(2,)), 2),
    "long drafts, short draft context": (Pair(2, 3, Sampling(0.8), context=4), 3),
}
POLICIES = {
    "none": lambda gamma: FixedLength(0),
    "fixed": FixedLength,
    "confidence": lambda gamma: ConfidenceThreshold(0.8, gamma),
    "cumulative": lambda gamma: CumulativeConfidence(0.7, gamma),
}


@pytest.mark.parametrize("case", CASES)
def test_replay_is_live_given_every_output(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    pair, gamma = CASES[case]
    policies = {name: make(gamma) for name, make in POLICIES.items()}
    replayed = by_output(monkeypatch, lambda: pair.replay([*policies.values()], gamma))
    for number, (name, policy) in enumerate(policies.items()):
        live = by_output(monkeypatch, lambda policy=policy: pair.live(policy))
        assert replayed.keys() == live.keys()
        for output, expected in live.items():
            found = replayed[output][[0, *range(3 * number + 1, 3 * number + 4)]]
            assert_allclose(found, expected, atol=3e-6, err_msg=f"{name}: {output}")


@pytest.mark.parametrize("policy", ["confidence", "cumulative"])
def test_how_far_one_drafts_depends_on_refused_tokens(policy: str) -> None:
    """Or the test above would say nothing of the refused drafts."""
    pair, gamma = CASES["long drafts, short draft context"]
    traces = [make_trace([pair.record(gamma, torch.Generator().manual_seed(seed))], 3) for seed in range(30)]
    found = set()
    for trace in traces:
        chosen = POLICIES[policy](gamma)
        refused, *_, whole = (chosen.lengths(signal_arrays(walk, chosen.reads))[0] for _, walk in coin_walks(trace))
        found.add(refused == whole)
    assert False in found


def test_products_of_acceptances_along_the_output_are_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """As :mod:`draftgauge.traces.sampled` says: multiply survivals; the last may be an acceptance: less variance."""
    pair = Pair(4, 3, Sampling(1.0), noise=2.0)

    def live() -> bool:
        out = speculative_decode(pair.target, pair.drafter(UNUSED), FixedLength(2), pair.prompt, pair.settings, UNUSED)
        return out.steps[0].accepted == 2

    def recorded() -> tuple[float, float, float]:
        record = pair.record(1)
        a, b = record.survival, record.acceptance
        return float(a[0] * a[1]), float(a[0] * b[1]), float(b[0] * b[1])

    with monkeypatch.context() as patch:
        truth = Enumerator(patch).law(live)[True]
    with monkeypatch.context() as patch:
        law = Enumerator(patch).law(recorded)
    chances = np.array(list(law.values()))
    mean = chances @ np.array(list(law))
    variance = chances @ (np.array(list(law)) - mean) ** 2
    assert_allclose(mean[:2], truth, atol=3e-6)
    assert mean[2] < 0.8 * truth
    assert variance[1] < 0.95 * variance[0]


def test_chances_are_those_of_the_distributions() -> None:
    pair = Pair(5, 12, Sampling(0.9, top_p=0.8))
    record = pair.record(3, torch.Generator().manual_seed(1))
    text = [*pair.prompt, *record.token.tolist()]
    for position, token in enumerate(record.token.tolist()):
        p, q = (
            probabilities(m.row(*text[position : position + 2]), pair.settings.sampling)
            for m in (pair.target, pair.draft)
        )
        assert record.acceptance[position] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-6)
        assert record.survival[position] == pytest.approx(min(1.0, float(q[token] / p[token])), abs=1e-6)
        refused = record.draft_token[position, 0]
        assert q[refused] > p[refused] or record.acceptance[position] == pytest.approx(1)
    assert (record.accepted[record.survival < 1] == 0).all(), "what was refused is not what the output has"


def test_a_walk_over_a_drawn_trace_is_a_live_one() -> None:
    """Real draws on both sides: rows drawn with coins, as for policies with a memory, against the live loop."""
    pair, gamma, runs = Pair(6, 12, Sampling(1.0)), 3, 60
    generator = torch.Generator().manual_seed(3)
    for policy in (FixedLength(3), ConfidenceThreshold(0.4, gamma)):
        live = np.array([pair.live(policy, generator)[1][:2] for _ in range(runs)])
        walked, expected = [], []
        for index in range(runs):
            trace = make_trace([pair.record(gamma, generator)], 12)
            coins = replay(drawn(trace, index), policy)
            walked.append((coins.steps[0], coins.drafted[0]))
            mean = replay(trace, policy)
            expected.append((mean.steps[0], mean.drafted[0]))
        for found in (np.array(walked, np.float64), np.array(expected)):
            error = np.sqrt((found.var(0) + live.var(0)) / runs)
            assert (np.abs(found.mean(0) - live.mean(0)) < 4 * error).all()
        assert np.array(expected)[:, 0].var() < 0.8 * live[:, 0].var(), (
            "an expectation given the output varies less than a run"
        )


@pytest.mark.parametrize("engine", ["lean", "static", "modules"])
def test_a_transformer_is_recorded_as_its_passes_say(engine: str) -> None:
    target, draft = wrap(tiny_model(), engine), wrap(tiny_model(seed=1), engine)
    generator, sampling, prompt = torch.Generator().manual_seed(4), Sampling(1.5, top_k=20), tokens(7, seed=2).tolist()
    drafter = LanguageModelDrafter(draft, sampling=sampling, generator=generator)
    settings = DecodingSettings(16, sampling)
    made = record_prompt(target, drafter, SOURCE, prompt, RecordingPlan(settings, 4), generator)
    made.validate()
    text = torch.tensor([*prompt, *made.token.tolist()])
    p, q = (probabilities(whole_logits(model, text)[len(prompt) - 1 : -1], sampling) for model in (target, draft))
    assert_allclose(made.acceptance, torch.minimum(p, q).sum(-1), atol=2e-5)
    at = torch.arange(16), text[len(prompt) :]
    assert_allclose(made.survival, (q[at] / p[at]).clamp(max=1), atol=2e-5)
    # The third signal of the refused draft of position 5 is the draft model's after the two tokens drafted there.
    drafted = torch.cat([text[: len(prompt) + 5], torch.tensor(made.draft_token[5, :2].tolist())])
    confidence = whole_logits(draft, drafted)[-1].softmax(-1).max()
    assert made.confidence[5, 2] == pytest.approx(float(confidence), abs=2e-5)


def whole_logits(model, text: torch.Tensor) -> torch.Tensor:
    model.reset()
    return model.forward(text)


def test_path_chances_of_both_kinds_of_traces() -> None:
    pair, gamma = Pair(4, 10, Sampling(1.0)), 3
    trace = make_trace([pair.record(gamma, torch.Generator().manual_seed(6))], 10)
    reach, acceptance = path_chances(trace)
    assert_allclose(acceptance[2, :2], trace.sampled.acceptance[2:4])
    assert_allclose(reach[2], np.cumprod([1, *trace.sampled.survival[2:4]]), rtol=1e-6)
    assert np.isnan(reach[9]).tolist() == [False, True, True]
    # Greedy rows say 0 or 1; over many draws they come to the same.
    count = 400
    sums = np.zeros((2, *reach.shape))
    for draw in range(count):
        reached, accepted = path_chances(drawn(trace, draw))
        sums += np.nan_to_num(np.stack([reached, reached * accepted]))
    chance = np.nan_to_num(np.stack([reach, reach_chances(trace)[:, 1:]]))
    assert (np.abs(sums / count - chance) < 4.5 * np.sqrt(chance * (1 - chance) / count) + 1e-9).all()
