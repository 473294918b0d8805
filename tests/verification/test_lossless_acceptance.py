"""Logits become probabilities as in transformers, and what is committed has the target's distribution."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from itertools import chain, combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import OF_DRAFTED_TOKENS, SignalName
from draftgauge.verification import (
    Sampling,
    Verdict,
    accept,
    accept_greedy,
    choose,
    draw,
    entropy_bits,
    flip,
    probabilities,
    read_signals,
    residual,
    signals,
)
from draftgauge.verification import acceptance as acceptance_module
from markov import Enumerator, Law, assert_same_law

SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.6),
    Sampling(temperature=2.0, top_k=2),
    Sampling(temperature=1.0, top_p=0.7),
    Sampling(temperature=1.3, top_k=3, top_p=0.8),
    Sampling(temperature=0.0),
]


def logits(seed: int, *shape: int) -> torch.Tensor:
    return 1.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def completed(law: Law, target: torch.Tensor) -> Law:
    """The law of the first ``len(target)`` tokens when a committed beginning is continued by the target alone."""
    rows, vocabulary = target.shape
    result: Law = defaultdict(float)
    for beginning, chance in law.items():
        for rest in itertools.product(range(vocabulary), repeat=rows - len(beginning)):
            rest_chance = math.prod(float(target[len(beginning) + i, token]) for i, token in enumerate(rest))
            result[(*beginning, *rest)] += chance * rest_chance
    return result


def judge(drafted: list[int], *options) -> Verdict:
    return Verdict(*accept(torch.tensor(drafted, dtype=torch.int64), *options).tolist())


def speculated(q: torch.Tensor, p: torch.Tensor) -> Callable[[], tuple[int, ...]]:
    """What one step commits whose draft is drawn from ``q``."""

    def program() -> tuple[int, ...]:
        drafted = acceptance_module.draw(q, None).tolist()
        verdict = judge(drafted, q, p, None)
        return (*drafted[: verdict.accepted], verdict.token)

    return program


def product_law(target: torch.Tensor) -> Law:
    return completed({(): 1.0}, target)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(("vocabulary", "gamma"), [(2, 1), (2, 3), (3, 2), (4, 1), (4, 3)])
def test_committed_tokens_have_the_target_law(monkeypatch, vocabulary, gamma, sampling):
    enumerator = Enumerator(monkeypatch)
    q = probabilities(logits(vocabulary, gamma, vocabulary), sampling)
    p = probabilities(logits(100 + gamma, gamma + 1, vocabulary), sampling)
    assert_same_law(completed(enumerator.law(speculated(q, p)), p), product_law(p))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("drafted", [[0], [2, 2], [1, 0, 2]])
def test_one_hot_drafts_have_the_target_law(monkeypatch, drafted, sampling):
    p = probabilities(logits(7, len(drafted) + 1, 3), sampling)

    def program(q):
        verdict = judge(drafted, q, p, None)
        return (*drafted[: verdict.accepted], verdict.token)

    law = Enumerator(monkeypatch).law(lambda: program(None))
    assert_same_law(completed(law, p), product_law(p))
    explicit = torch.nn.functional.one_hot(torch.tensor(drafted), 3).float()
    assert_same_law(Enumerator(monkeypatch).law(lambda: program(explicit)), law)


@pytest.mark.parametrize(
    ("q", "p"),
    [
        (probabilities(logits(1, 2, 4), Sampling(1.5)), probabilities(logits(2, 3, 4), Sampling(0.7, top_k=2))),
        (probabilities(logits(1, 1, 2), Sampling(1.0)), probabilities(logits(2, 2, 4), Sampling(1.0))),
    ],
    ids=["other settings", "a narrower vocabulary"],
)
def test_draft_and_target_may_differ_in_settings_and_vocabulary(monkeypatch, q, p):
    assert_same_law(completed(Enumerator(monkeypatch).law(speculated(q, p)), p), product_law(p))


def test_the_seeded_draws_of_accept_follow_the_law():
    generator = torch.Generator().manual_seed(0)
    q = torch.tensor([[0.7, 0.2, 0.1]])
    p = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    runs = 2000
    drafted = torch.multinomial(q[0], runs, replacement=True, generator=generator).tolist()
    firsts = torch.zeros(3)
    accepted = 0
    for token in drafted:
        verdict = judge([token], q, p, generator)
        firsts[token if verdict.accepted else verdict.token] += 1
        accepted += verdict.accepted
    deviation = (p[0] * (1 - p[0]) / runs).sqrt()
    assert ((firsts / runs - p[0]).abs() < 4 * deviation).all()
    overlap = float(torch.minimum(p[0], q[0]).sum())  # the acceptance rate, Leviathan et al. 2023, theorem 3.5
    assert abs(accepted / runs - overlap) < 4 * math.sqrt(overlap * (1 - overlap) / runs)


def test_accept_repeats_with_its_generator():
    q, p = probabilities(logits(1, 3, 4), Sampling(1.0)), probabilities(logits(2, 4, 4), Sampling(1.0))
    first, second = (judge([0, 1, 2], q, p, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("drafted", "target", "expected"),
    [
        ([], [4], Verdict(0, 4)),
        ([1, 2, 3], [1, 2, 3, 9], Verdict(3, 9)),
        ([1, 2, 3], [1, 7, 3, 9], Verdict(1, 7)),
        ([1, 2, 3], [0, 2, 3, 9], Verdict(0, 0)),
    ],
)
def test_accept_greedy(drafted, target, expected):
    assert accept_greedy(drafted, target) == expected
    p = torch.nn.functional.one_hot(torch.tensor(target), 10).float()
    assert judge(drafted, None, p, torch.Generator().manual_seed(0)) == expected


def test_residual():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    assert residual(p, q).tolist() == [1.0, 0.0, 0.0]
    assert residual(p, torch.tensor([0.25, 0.75])).tolist() == [0.5, 0.0, 0.5]
    assert residual(p, p).tolist() == p.tolist()  # nothing left over


def test_residual_of_nearly_equal_distributions_is_a_distribution():
    p = probabilities(logits(3, 1000), Sampling(1.0))
    q = p * (1 + 1e-7 * torch.randn(1000, generator=torch.Generator().manual_seed(0)))
    left_over = residual(p, q)
    assert left_over.min() >= 0
    assert float(left_over.sum()) == pytest.approx(1, abs=1e-5)


def scores_of(seed: int, *shape: int) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hugging_face(scores: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    warped = TemperatureLogitsWarper(sampling.temperature)(None, scores)
    if sampling.top_k:
        warped = TopKLogitsWarper(sampling.top_k)(None, warped)
    if sampling.top_p < 1:
        warped = TopPLogitsWarper(sampling.top_p)(None, warped)
    return warped.softmax(-1)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(2, 12),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.integers(0, 13),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
)
def test_as_transformers_warps(seed, vocabulary, temperature, top_k, top_p):
    sampling = Sampling(temperature, top_k, top_p)
    scores = scores_of(seed, 3, vocabulary)
    torch.testing.assert_close(probabilities(scores, sampling), hugging_face(scores, sampling), atol=1e-6, rtol=1e-5)


def test_greedy_is_one_hot_of_the_lowest_tied_token():
    rows = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 5.0]])
    assert probabilities(rows, Sampling()).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert choose(rows, Sampling(), None).tolist() == [1, 0]


def test_ties_at_the_edges():
    tied = torch.tensor([1.0, 1.0, 0.0, 1.0]).log_softmax(-1)
    assert (probabilities(tied, Sampling(1.0, top_k=1)) > 0).tolist() == [True, True, False, True]
    uniform, steep = torch.zeros(4), torch.tensor([0.0, -1.0])
    assert (probabilities(uniform, Sampling(1.0, top_p=0.5)) > 0).all()
    assert probabilities(steep, Sampling(1.0, top_p=float(steep.softmax(-1)[0]))).tolist() == [1.0, 0.0]


def test_all_tokens_are_kept_by_default_and_a_choice_is_a_draw():
    scores = torch.tensor([[30.0, 0.0, 1.0]])  # the first alone has all mass in float32
    assert (probabilities(scores, Sampling(1.0)) > 0).all()
    scores, sampling = scores_of(2, 64, 9), Sampling(0.7, top_k=3, top_p=0.9)
    first, second = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    assert choose(scores, sampling, first).equal(draw(probabilities(scores, sampling), second))


def test_a_wide_nucleus():
    # From thousands of tokens in the nucleus to a few.
    scores = scores_of(0, 3, 5000) * torch.tensor([[0.01], [0.3], [3.0]])
    for top_p in (0.2, 0.9, 0.99999):
        sampling = Sampling(1.0, top_p=top_p)
        torch.testing.assert_close(
            probabilities(scores, sampling), hugging_face(scores, sampling), atol=2e-6, rtol=1e-4
        )


def test_a_tiny_temperature_does_not_overflow():
    row = probabilities(torch.tensor([3e4, 1e4, -3e4]), Sampling(2e-38))
    assert row.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("name", "values"),
    [("temperature", (-1, math.nan, math.inf, 1e-46)), ("top_k", (-1,)), ("top_p", (0, 1.1))],  # 1e-46: 0 in float32
)
def test_settings_out_of_range(name, values):
    for value in values:
        with pytest.raises(DraftgaugeError, match=name):
            Sampling(**{name: value})


def test_draw_follows_the_weights():
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 6.0, 0.0])
    count = 20_000
    drawn = draw(weights.expand(count, -1), torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=6) / count
    expected = weights / weights.sum()
    assert ((share - expected).abs() <= 4 * (expected * (1 - expected) / count).sqrt()).all()


def test_draw_at_the_ends_of_the_interval(monkeypatch):
    weights = torch.tensor([0.0, 2.0, 0.0, 2.0, 0.0])
    for uniform, expected in [(0.0, 3), (0.4999, 3), (0.5, 1), (1 - 2**-53, 1)]:
        monkeypatch.setattr(torch, "rand", lambda *shape, value=uniform, **_: torch.tensor(value, dtype=torch.float64))
        assert int(draw(weights, None)) == expected


def test_flip():
    generator = torch.Generator().manual_seed(0)
    assert not flip(torch.zeros(1000), generator).any()
    assert flip(torch.full((1000,), 1.5), generator).all()
    assert not flip(torch.full((1000,), math.nan), generator).any()
    assert float(flip(torch.full((20_000,), 0.3), generator).float().mean()) == pytest.approx(0.3, abs=0.013)


def test_signals():
    rows = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]]).log()  # -inf: a masked token
    confidence, entropy, margin = signals(rows)
    torch.testing.assert_close(confidence, torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(entropy, torch.tensor([1.5, 2.0]))
    torch.testing.assert_close(margin, torch.tensor([0.25, 0.0]))
    torch.testing.assert_close(entropy_bits(rows[:1]), torch.tensor([1.5]))


IN_ORDER = (SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN)
SETS = [frozenset(names) for names in chain(*(combinations(sorted(OF_DRAFTED_TOKENS), n) for n in range(5)))]


@pytest.mark.parametrize("reads", SETS, ids=lambda reads: "-".join(sorted(reads)) or "none")
def test_only_what_is_read_is_there_and_it_is_right(reads: frozenset[SignalName]):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    tokens = logits.argmax(-1)
    expected = [
        (*(value if name in reads else float("nan") for name, value in zip(IN_ORDER, shown, strict=True)), token)
        for *shown, token in zip(*(column.tolist() for column in signals(logits)), tokens.tolist(), strict=True)
    ]
    rows = read_signals(logits, tokens, reads)
    assert [pytest.approx(row, nan_ok=True, rel=1e-6) for row in expected] == rows
