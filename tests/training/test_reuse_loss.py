"""The loss depth by depth: equal to the definition written out, gradients too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.training.reuse import loss as losses
from draftgauge.training.reuse.answers import Conversation
from draftgauge.training.reuse.data import Batch, collate
from draftgauge.training.reuse.loss import backward_through_depths, teach
from tiny import tokens

VOCABULARY, DEPTHS, WIDTH = 24, 3, 8


@pytest.fixture
def batch() -> Batch:
    conversations = [
        Conversation(tokens(n, n, VOCABULARY).numpy().astype("int32"), prompt)
        for n, prompt in ((14, 5), (9, 4), (16, 9))
    ]
    return collate(conversations, (0, 1, 2), DEPTHS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def defined(
    states: list[Tensor], head: nn.Linear, target: Tensor, batch: Batch, d2t: Tensor | None, scales: list[float]
) -> Tensor:
    """Position by position, in the words of the definition."""
    total = torch.zeros(())
    for depth, state in enumerate(states):
        for row in range(len(batch.tokens)):
            for place in range(batch.anchors):
                anchor = batch.first + place
                if not (anchor >= batch.prompt[row] - 2 and anchor + 2 + depth < batch.length[row]):
                    continue
                full = target[row, anchor + 1 + depth]
                own = head(state[row, place])
                kept = full if d2t is None else full[d2t]
                if d2t is not None and int(full.argmax()) not in d2t.tolist():
                    continue
                entropy = -(kept.softmax(-1) * kept.log_softmax(-1)).sum()
                crossed = -(kept.softmax(-1) * own.log_softmax(-1)).sum()
                total = total + scales[depth] * (crossed - entropy)
    return total


@pytest.mark.parametrize("vocabulary", [None, 9])
def test_it_is_the_definition(batch: Batch, vocabulary: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", {"cpu": 5 * VOCABULARY})  # several chunks, the last one not full
    d2t = t2d = None
    if vocabulary is not None:
        kept = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))[:vocabulary]
        d2t, t2d = kept.sort().values, torch.full((VOCABULARY,), -1)
        t2d[d2t] = torch.arange(len(d2t))
    target = 3 * random(len(batch.tokens), batch.tokens.shape[1], VOCABULARY, seed=2)
    head = nn.Linear(WIDTH, vocabulary or VOCABULARY, bias=False)
    start = [random(3, batch.anchors, WIDTH, seed=10 + depth).requires_grad_() for depth in range(DEPTHS)]
    scales = [0.5, 0.3, 0.2]

    expected = defined(start, head, target, batch, d2t, scales)
    expected.backward()
    wanted = [head.weight.grad.clone()] + [state.grad.clone() for state in start]  # type: ignore[union-attr]
    for leaf in (head.weight, *start):
        leaf.grad = None

    states = [2 * (state / 2) for state in start]  # not leaves: as a network's outputs
    figures = backward_through_depths(
        states, lambda x, _: head(x), teach(target[batch.taught()], batch, t2d, d2t), batch, scales
    )
    assert float((figures.loss * torch.tensor(scales)).sum()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for found, gradient in zip((head.weight.grad, *(state.grad for state in start)), wanted, strict=True):
        torch.testing.assert_close(found, gradient, atol=1e-6, rtol=1e-4)


def test_the_figures_count_what_is_trained(batch: Batch) -> None:
    target = random(len(batch.tokens), batch.tokens.shape[1], VOCABULARY, seed=2)
    one_hot = [
        F.one_hot(target[:, batch.first + 1 + d :][:, : batch.anchors].argmax(-1), VOCABULARY).float()
        for d in range(DEPTHS)
    ]
    states = [state.requires_grad_() for state in one_hot]
    figures = backward_through_depths(
        states, lambda x, _: 9 * x, teach(target[batch.taught()], batch), batch, [1.0] * DEPTHS
    )
    # Answers have 9, 5 and 7 tokens; every depth loses one of each.
    assert figures.count.tolist() == [21, 18, 15]
    assert figures.agreed.tolist() == figures.count.tolist()


@pytest.mark.parametrize("kind", ["soft", "hard", "tv"])
def test_every_loss_and_its_gradient_by_their_definition(batch: Batch, kind: str) -> None:
    count = int(batch.taught().sum())
    teacher = teach(random(count, VOCABULARY, seed=1), batch)
    own = random(count, VOCABULARY, seed=2).requires_grad_()
    found = losses.token_loss(own.detach().clone(), teacher, kind, overlap=True)
    p, q = teacher.logits.softmax(-1), own.softmax(-1)
    soft, apart = -(p * q.log()).sum(), (p - q).abs().sum()
    hard = F.cross_entropy(own, teacher.token, reduction="sum")
    wanted = {"soft": soft, "hard": hard, "tv": 0.1 * soft + 0.9 * apart}[kind]
    wanted.backward()
    torch.testing.assert_close(found.loss, wanted.detach(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.gradient, own.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found.overlap, torch.minimum(p, q.detach()).sum(-1))
