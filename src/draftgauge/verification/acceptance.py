"""Which drafted tokens stand, and the target's own token after them.

Standard speculative sampling (Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", section 2.3 and appendix A.1). With ``q`` the distribution a token was drafted from and ``p`` the target's,
the token ``x`` is accepted with chance ``min(1, p(x) / q(x))``. The first one rejected is replaced by a draw from
``norm(max(p - q, 0))``; if none is, a bonus token is drawn from the target's next distribution. Each committed token
then has exactly the target's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional

from draftgauge.verification.sampling import draw, flip


class Verdict(NamedTuple):
    """The outcome of one verification.

    Attributes:
        accepted: how many of the drafted tokens stand, from the first one on.
        token: the target's own token after them: the correction of the first rejected one, or the bonus.
    """

    accepted: int
    token: int


def accept(
    draft_tokens: Sequence[int],
    draft_probabilities: Tensor | None,
    target_probabilities: Tensor,
    generator: Generator | None,
) -> Verdict:
    """Accept drafted tokens so that what is committed has the target's distribution.

    Args:
        draft_tokens: ``g`` tokens, possibly none.
        draft_probabilities: ``[k, W]`` the distributions that the first ``k`` of them were drawn from, ``W`` at most
            ``V``; None if none was. Tokens that were not drawn (greedy drafting, prompt lookup, tokens looked up after
            the drawn ones) count as drawn from a one-hot distribution.
        target_probabilities: ``[g + 1, V]``; row ``i`` is the target's distribution in the place of drafted token
            ``i``, the last row that of the bonus token.
        generator: on the device of the probabilities.
    """
    gamma = len(draft_tokens)
    if gamma == 0:
        return Verdict(0, int(draw(target_probabilities[0], generator)))
    p = target_probabilities
    position, token = torch.arange(gamma, device=p.device), torch.tensor(draft_tokens, device=p.device)
    chances = p[position, token]
    drawn = 0 if draft_probabilities is None else len(draft_probabilities)
    if draft_probabilities is not None:
        chances[:drawn] = chances[:drawn] / draft_probabilities[position[:drawn], token[:drawn]]
    accepted = int(flip(chances, generator).long().cumprod(0).sum())
    if accepted == gamma:
        own = p[gamma]
    elif draft_probabilities is None or accepted >= drawn:
        own = residual(p[accepted], functional.one_hot(token[accepted], p.shape[-1]).to(p.dtype))
    else:
        own = residual(p[accepted], draft_probabilities[accepted])
    return Verdict(accepted, int(draw(own, generator)))


def accept_greedy(draft_tokens: Sequence[int], target_tokens: Sequence[int]) -> Verdict:
    """:func:`accept` for a greedy target, from its most probable tokens alone.

    Args:
        draft_tokens: ``g`` tokens, possibly none.
        target_tokens: ``g + 1`` tokens, the argmax of each row of the target's logits.
    """
    accepted = 0
    while accepted < len(draft_tokens) and draft_tokens[accepted] == target_tokens[accepted]:
        accepted += 1
    return Verdict(accepted, target_tokens[accepted])


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """What the target has more of than the draft, ``norm(max(p - q, 0))``.

    Args:
        target: ``[..., V]`` the target's distribution.
        draft: ``[..., W]`` the draft's; a narrower one has no mass on the ids it lacks.

    Returns:
        ``[..., V]``, summing to 1. Where the two agree to the last bit nothing is left over (a rejection is then due to
        rounding alone) and it is the target's own distribution.
    """
    difference = (target - functional.pad(draft, (0, target.shape[-1] - draft.shape[-1]))).clamp_min(0)
    mass = difference.sum(-1, keepdim=True)
    return torch.where(mass > 0, difference / mass, target)
