"""The training loop: it learns, and an interrupted run ends exactly where an uninterrupted one does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.core.errors import DraftgaugeError
from draftgauge.training.optimise import autocast_dtype
from recipes.reference_pair.loop import Batches, LossFunction, Phase, Plan, train

VOCABULARY = 16


class Bigrams(nn.Module):
    """A model small enough to train in a test, with a matrix for each optimiser."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.middle = nn.Linear(8, 8, bias=False)
        self.lm_head = nn.Linear(8, VOCABULARY)


def loss_of(model: Bigrams) -> LossFunction:
    def loss(batch: Tensor) -> Tensor:
        logits = model.lm_head(model.middle(model.embed(batch[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return loss


@pytest.fixture
def phases() -> list[Phase]:
    """Texts in which every token is followed by the next one, in windows of 8 and then of 16 tokens."""
    starts = np.random.default_rng(0).integers(0, VOCABULARY, 64)
    return [
        Phase(((starts[:, None] + np.arange(n)) % VOCABULARY).astype(np.uint16), share)
        for n, share in ((8, 0.5), (16, 0.5))
    ]


PLAN = Plan(
    tokens=40 * 64,
    step_tokens=64,
    micro_tokens=32,
    learning_rate=0.05,
    embedding_rate=0.05,
    warmup_steps=2,
    checkpoint_every=10,
)


def test_it_learns(phases: list[Phase], tmp_path: Path) -> None:
    model = Bigrams()
    first = loss_of(model)(torch.from_numpy(phases[0].windows.astype(np.int64))).item()
    reports: list[dict[str, float]] = []
    state = train(model, loss_of(model), phases, PLAN, tmp_path, reports.append)
    assert state["tokens"] == PLAN.tokens
    assert [r["step"] for r in reports] == [10, 20, 30, 40]
    assert state["loss"] < 0.8 * first


class KilledError(Exception):
    """Stands for a kill at any moment."""


@pytest.mark.parametrize("killed_at", [5, 25, 33])
def test_a_killed_run_resumes_exactly(phases: list[Phase], tmp_path: Path, killed_at: int) -> None:
    straight = Bigrams()
    train(straight, loss_of(straight), phases, PLAN, tmp_path / "straight")

    broken, calls = Bigrams(), 0
    inner = loss_of(broken)

    def failing(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 2 * killed_at:
            raise KilledError
        return inner(batch)

    with pytest.raises(KilledError):
        train(broken, failing, phases, PLAN, tmp_path / "broken")
    resumed = Bigrams()
    state = train(resumed, loss_of(resumed), phases, PLAN, tmp_path / "broken")
    assert state["step"] == PLAN.steps
    for (name, one), other in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_a_folder_that_holds_another_training(phases: list[Phase], tmp_path: Path) -> None:
    model = Bigrams()
    train(model, loss_of(model), phases, PLAN, tmp_path)
    other = replace(PLAN, seed=1, tokens=2 * PLAN.tokens)
    with pytest.raises(DraftgaugeError, match="tokens 2560 there, 5120 here; seed 0 there, 1 here"):
        train(model, loss_of(model), phases, other, tmp_path)
    (weights,) = tmp_path.glob("step-*/weights.safetensors")
    weights.write_bytes(weights.read_bytes()[:99])
    with pytest.raises(DraftgaugeError, match=r"cannot be read .*: remove that folder"):
        train(model, loss_of(model), phases, PLAN, tmp_path)
    weights.unlink()
    with pytest.raises(DraftgaugeError, match="cannot be read"):
        train(model, loss_of(model), phases, PLAN, tmp_path)


def test_every_step_sees_the_same_number_of_tokens(phases: list[Phase]) -> None:
    batches = Batches(phases, PLAN)
    shapes = [[part.shape for part in batches.step(step)] for step in range(PLAN.steps)]
    assert shapes[0] == [(4, 8), (4, 8)]
    assert shapes[-1] == [(2, 16), (2, 16)]
    assert all(sum(rows * length for rows, length in step) == PLAN.step_tokens for step in shapes)


def test_the_rate_warms_up_and_decays() -> None:
    plan = Plan(tokens=100 * 8192, warmup_steps=10)
    rates = [plan.rate(step) for step in range(plan.steps)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == 1.0
    assert rates[-1] < 0.05
    assert all(a >= b for a, b in pairwise(rates[60:]))


def test_interleaved_phases_come_by_turns_in_their_shares_and_windows_in_order(phases: list[Phase]) -> None:
    turns, interleaved = Batches(phases, PLAN), Batches(phases, replace(PLAN, interleaved=True))
    lengths = [interleaved.step(step)[0].shape[1] for step in range(PLAN.steps)]
    in_turn = [turns.step(step)[0].shape[1] for step in range(PLAN.steps)]
    assert sorted(lengths) == in_turn
    assert lengths[:4].count(8) == round(4 * phases[0].share / sum(phase.share for phase in phases))
    short = [step for step in range(PLAN.steps) if lengths[step] == 8]
    for number, step in enumerate(short):
        for one, other in zip(interleaved.step(step), turns.step(number), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("native", "dtype"), [(True, torch.bfloat16), (False, None)])
def test_bfloat16_that_a_gpu_only_emulates_is_not_used(
    native: bool, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native or including_emulation)
    assert autocast_dtype(torch.device("cuda")) == dtype
