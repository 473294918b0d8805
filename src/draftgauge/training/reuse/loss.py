"""The loss of training-time test (EAGLE-3, arXiv 2503.01840): every depth of every chain against the target's
distribution.

Only the logits of one depth, and of one chunk of rows, exist at a time: their gradient goes to the states at once. With
a large vocabulary they would otherwise be most of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from draftgauge.training.reuse.data import Batch
from draftgauge.training.reuse.request import HARD, SOFT

TV_CROSS_ENTROPY = 0.1  # share of the cross-entropy in the loss tv
CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}  # logits that exist at once: on a CPU they stay in its cache

ToLogits = Callable[[Tensor, Tensor], Tensor]


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
    """The target's predictions at the positions that the batch trains.

    Args:
        logits: of the target where the batch is taught, ``[n, vocabulary]``.
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
    kind: str = SOFT,
    to_confidence: Callable[[Tensor], Tensor] | None = None,
) -> Figures:
    """Add the gradient of the loss to every parameter behind the states, and sum up what the loss was.

    Where the draft vocabulary lacks the target's token nothing is learned, as in EAGLE-3's training.

    Args:
        states: the drafter's output states of every depth, each ``[B, A, H]``.
        to_logits: maps states ``[n, H]``, and the tokens ``[n]`` before the predicted ones, to logits ``[n, V]``.
        scales: what a position of each depth weighs in the loss.
        kind: see :func:`token_loss`.
        to_confidence: maps states to logits ``[n]`` of the chance of acceptance, trained to the overlap of both
            distributions; None without such a head.
    """
    gradients, sums = [], []
    device = states[0].device
    chunk = _chunk(teacher.logits)
    places = batch.positions().expand(len(batch.tokens), -1).flatten()
    for depth, state in enumerate(states):
        trained = batch.trained(depth).flatten().nonzero()[:, 0]
        positions = (places[trained] + 1 + depth).to(device, non_blocking=True)
        rows = trained.to(device, non_blocking=True)
        flat, gradient = state.detach().flatten(0, 1), torch.zeros_like(state).flatten(0, 1)
        totals = torch.zeros(3, device=device)
        for part, position in zip(rows.split(chunk), positions.split(chunk), strict=True):
            piece, text = flat[part].requires_grad_(), part // state.shape[1]
            chosen = teacher.at(text, position)
            with torch.enable_grad():
                logits = to_logits(piece, batch.tokens[text, position])
                sure = None if to_confidence is None else to_confidence(piece)
            found = token_loss(logits.detach(), chosen, kind, sure is not None)
            loss = found.loss - (chosen.entropy * (chosen.token >= 0)).sum() if kind == SOFT else found.loss  # KL
            outputs, of_outputs = [logits], [found.gradient.mul_(scales[depth])]
            if sure is not None and found.overlap is not None:
                outputs.append(sure)
                of_outputs.append((sure.detach().sigmoid() - found.overlap).mul_(scales[depth]).to(sure.dtype))
            torch.autograd.backward(outputs, of_outputs)
            assert piece.grad is not None
            gradient[part] = piece.grad
            totals += torch.stack((loss, found.agreed, loss.new_tensor(len(part))))
        gradients.append(gradient.view_as(state))
        sums.append(totals)
    torch.autograd.backward(list(states), gradients)
    stacked = torch.stack(sums, 1)
    return Figures(stacked[0], stacked[1], stacked[2])


class TokenLoss(NamedTuple):
    """Summed loss and number of rows whose largest logit is the teacher's token, float32; the gradient ``[n, V]`` in
    the logits' dtype. ``overlap`` is ``[n]``, 1 - TV of the two distributions, where asked for."""

    loss: Tensor
    agreed: Tensor
    gradient: Tensor
    overlap: Tensor | None


def token_loss(logits: Tensor, teacher: Teacher, kind: str = SOFT, overlap: bool = False) -> TokenLoss:
    """The loss of ``n`` positions and its gradient by the logits ``[n, V]``, in few passes.

    ``soft`` is the cross-entropy ``-sum_v p_v log q_v`` to the teacher's distribution, ``hard`` that to its token.
    ``tv`` is 0.1 of the soft one and 0.9 of ``sum_v |p_v - q_v|`` (DeepSpec). Rows whose token is -1 count nothing.
    """
    taught = (teacher.token >= 0)[:, None]
    q = logits.float()
    top = q.amax(-1, keepdim=True)
    of_token = q.gather(1, teacher.token.clamp(min=0)[:, None])
    agreed = ((of_token >= top) & taught).sum().float()  # far cheaper than argmax
    p = q if kind == HARD and not overlap else (teacher.logits.float() - teacher.log_total[:, None]).exp_()
    crossed = of_token if kind == HARD else _row_products(p, q)[:, None]
    q = q.sub_(top) if q is not logits else q - top
    total = q.exp_().sum(-1, keepdim=True)
    loss = total.log() + top - crossed
    q = q.div_(total)
    shared = torch.minimum(p, q).sum(-1) if overlap else None
    if kind == HARD:
        gradient = q.scatter_add_(1, teacher.token.clamp(min=0)[:, None], torch.full_like(of_token, -1))
    elif kind == SOFT:
        gradient = q.sub_(p)
    else:
        apart = q - p
        sign = apart.sign()
        loss = TV_CROSS_ENTROPY * loss + (1 - TV_CROSS_ENTROPY) * apart.abs().sum(-1, keepdim=True)
        of_distance = q.mul_(sign - _row_products(q, sign)[:, None])
        gradient = apart.mul_(TV_CROSS_ENTROPY).add_(of_distance, alpha=1 - TV_CROSS_ENTROPY)
    return TokenLoss((loss * taught).sum(), agreed, gradient.mul_(taught).to(logits.dtype), shared)
