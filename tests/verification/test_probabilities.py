"""The one place where logits become probabilities, checked against transformers; drawing from them; their signals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from draftgauge.core.errors import DraftgaugeError
from draftgauge.verification import Sampling, choose, draw, entropy_bits, flip, probabilities, signals


def logits(seed: int, *shape: int) -> torch.Tensor:
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
    scores = logits(seed, 3, vocabulary)
    torch.testing.assert_close(probabilities(scores, sampling), hugging_face(scores, sampling), atol=1e-6, rtol=1e-5)


def test_greedy_is_one_hot_of_the_lowest_tied_token():
    rows = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 5.0]])
    assert probabilities(rows, Sampling()).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert choose(rows, Sampling(), None).tolist() == [1, 0]


def test_ties_at_the_edges():
    tied = torch.tensor([1.0, 1.0, 0.0, 1.0]).log_softmax(-1)
    assert (probabilities(tied, Sampling(1.0, top_k=1)) > 0).tolist() == [True, True, False, True]
    uniform = torch.zeros(4)
    assert (probabilities(uniform, Sampling(1.0, top_p=0.5)) > 0).all()


def test_all_tokens_are_kept_by_default_and_a_choice_is_a_draw():
    scores = torch.tensor([[30.0, 0.0, 1.0]])  # the first alone has all mass in float32
    assert (probabilities(scores, Sampling(1.0)) > 0).all()
    scores, sampling = logits(2, 64, 9), Sampling(0.7, top_k=3, top_p=0.9)
    first, second = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
    assert choose(scores, sampling, first).equal(draw(probabilities(scores, sampling), second))


def test_a_wide_nucleus():
    # From thousands of tokens in the nucleus to a few.
    scores = logits(0, 3, 5000) * torch.tensor([[0.01], [0.3], [3.0]])
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
