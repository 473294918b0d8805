"""The loss of training-time test (EAGLE-3, arXiv 2503.01840): every depth of every chain against the target's
distribution.

The logits of one depth, and of no more rows than a chunk, exist at a time: their gradient is taken at once and handed
to the states they came from. With a large vocabulary they would otherwise be most of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgauge.training.reuse.batches import Batch

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}  # logits that exist at once: on a CPU they stay in its cache

ToLogits = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Teacher:
    """The target's predictions at the ``n`` positions of a batch that teach, see :meth:`Batch.taught`.

    Attributes:
        index: ``[B, T]`` which of them a position of the batch is.
        logits: ``[n, V]``, of the draft vocabulary where there is one.
        log_total: ``[n]`` float32, log of the sum of their exponentials.
        entropy: ``[n]`` float32, in nats.
        token: ``[n]`` the target's own token as an id of the draft vocabulary, -1 where that lacks it.
    """

    index: Tensor
    logits: Tensor
    log_total: Tensor
    entropy: Tensor
    token: Tensor

    def at(self, text: Tensor, position: Tensor) -> Teacher:
        chosen = self.index[text, position]
        return Teacher(chosen, self.logits[chosen], self.log_total[chosen], self.entropy[chosen], self.token[chosen])


@torch.no_grad()
def teach(logits: Tensor, batch: Batch, t2d: Tensor | None = None, d2t: Tensor | None = None) -> Teacher:
    """What the target says where the batch trains.

    Args:
        logits: of the target where the batch is taught, ``[n, vocabulary]``.
        batch: the conversations.
        t2d: ``[vocabulary]`` draft ids of the target's, -1 for none; None without a draft vocabulary.
        d2t: ``[V]`` target ids of the draft vocabulary, likewise.
    """
    taught = batch.taught()
    index = (taught.flatten().cumsum(0) - 1).view_as(taught).to(logits.device, non_blocking=True)
    token = logits.argmax(-1)
    if d2t is not None and t2d is not None:
        logits, token = logits[:, d2t], t2d[token]
    log_total = torch.empty(token.shape, device=logits.device)
    entropy = torch.empty_like(log_total)
    rows = _chunk(logits)
    for part, total, nats in zip(logits.split(rows), log_total.split(rows), entropy.split(rows), strict=True):
        wide = part.float()
        total.copy_(wide.logsumexp(-1))
        weights = (wide - total[:, None]).exp_()
        nats.copy_(total - _row_products(weights, wide))
    return Teacher(index, logits, log_total, entropy, token)


def _row_products(one: Tensor, other: Tensor) -> Tensor:
    """``[n]`` products of the rows of two float32 ``[n, V]``; autocast would round both to half precision first."""
    with torch.autocast(one.device.type, enabled=False):
        return torch.linalg.vecdot(one, other)


def _chunk(logits: Tensor) -> int:
    return max(1, CHUNK_ELEMENTS.get(logits.device.type, 1 << 24) // logits.shape[-1])


@dataclass(frozen=True)
class Figures:
    """Sums over the trained positions of a batch, by depth; all ``[K]`` float32 on the batch's device.

    Attributes:
        loss: nats.
        agreed: positions where the drafter's most probable token is the target's.
        count: positions.
    """

    loss: Tensor
    agreed: Tensor
    count: Tensor

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.loss + other.loss, self.agreed + other.agreed, self.count + other.count)


def depth_weights(depths: int, decay: float) -> Tensor:
    """``[K]`` weights of the depths, summing to 1."""
    weights = decay ** torch.arange(depths, dtype=torch.float64)
    return (weights / weights.sum()).float()


def backward_through_depths(
    states: Sequence[Tensor],
    to_logits: ToLogits,
    teacher: Teacher,
    batch: Batch,
    scales: Sequence[float],
) -> Figures:
    """Add the gradient of the loss to every parameter behind the states, and sum up what the loss was.

    Where the draft vocabulary lacks the target's token nothing is learned, as in EAGLE-3's training.

    Args:
        states: the drafter's output states of every depth, each ``[B, anchors, H]``.
        to_logits: maps states ``[n, H]`` to logits ``[n, V]``.
        scales: what a position of each depth weighs in the loss.
    """
    gradients, sums = [], []
    device = states[0].device
    chunk = _chunk(teacher.logits)
    for depth, state in enumerate(states):
        rows = batch.trained(depth).flatten().nonzero()[:, 0].to(device, non_blocking=True)
        flat, gradient = state.detach().flatten(0, 1), torch.zeros_like(state).flatten(0, 1)
        totals = torch.zeros(3, device=device)
        for part in rows.split(chunk):
            piece = flat[part].requires_grad_()
            chosen = teacher.at(part // batch.anchors, batch.first + 1 + part % batch.anchors + depth)
            with torch.enable_grad():
                logits = to_logits(piece)
            loss, agreed, of_logits = soft_cross_entropy(logits.detach(), chosen.logits, chosen.log_total, chosen.token)
            loss = loss - (chosen.entropy * (chosen.token >= 0)).sum()  # KL
            logits.backward(of_logits.mul_(scales[depth]))
            assert piece.grad is not None
            gradient[part] = piece.grad
            totals += torch.stack((loss, agreed, agreed.new_tensor(len(part))))
        gradients.append(gradient.view_as(state))
        sums.append(totals)
    torch.autograd.backward(list(states), gradients)
    stacked = torch.stack(sums, 1)
    return Figures(stacked[0], stacked[1], stacked[2])


def soft_cross_entropy(
    logits: Tensor, teacher: Tensor, log_total: Tensor, token: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy ``-sum_v p_v log q_v`` to the teacher's distribution, its gradient ``q - p``, and agreements, in
    few passes.

    Args:
        logits, teacher: ``[n, V]``.
        log_total: ``[n]`` log of the sum of the teacher's exponentials.
        token: ``[n]`` the teacher's token; rows with -1 count nothing.

    Returns:
        Summed loss and number of rows whose largest logit is the token's, float32, and the gradient in the dtype of
        ``logits``.
    """
    taught = (token >= 0)[:, None]
    q = logits.float()
    top = q.amax(-1, keepdim=True)
    agreed = ((q.gather(1, token.clamp(min=0)[:, None]) >= top) & taught).sum().float()  # far cheaper than argmax
    p = (teacher.float() - log_total[:, None]).exp_()
    crossed = _row_products(p, q)[:, None]
    q = q.sub_(top) if q is not logits else q - top
    total = q.exp_().sum(-1, keepdim=True)
    loss = ((total.log() + top - crossed) * taught).sum()
    gradient = q.div_(total).sub_(p).mul_(taught)
    return loss, agreed, gradient.to(logits.dtype)
