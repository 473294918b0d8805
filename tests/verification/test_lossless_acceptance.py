"""Whatever is drafted, what is committed has the target's distribution: every outcome of ``accept`` enumerated."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from draftgauge.verification import Sampling, Verdict, accept, accept_greedy, probabilities, residual
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
