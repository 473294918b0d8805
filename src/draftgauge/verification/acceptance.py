"""Which drafted tokens are accepted, and the target's own token after them.

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
        accepted: how many drafted tokens are accepted, from the first one on.
        token: the target's own token after them: the correction of the first rejected one, or the bonus.
    """

    accepted: int
    token: int


def accept(
    drafted: Tensor, draft_probabilities: Tensor | None, target_probabilities: Tensor, generator: Generator | None
) -> Tensor:
    """Accept drafted tokens so that what is committed has the target's distribution; the device need not be waited for.

    Args:
        drafted: ``[g]`` int64, possibly none.
        draft_probabilities: ``[k, W]`` the distributions that the first ``k`` of them were drawn from, ``W`` at most
            ``V``; None if none was. Tokens that were not drawn (greedy drafting, prompt lookup, tokens looked up after
            the drawn ones) count as drawn from a one-hot distribution.
        target_probabilities: ``[g + 1, V]``; row ``i`` is the target's distribution in the place of drafted token
            ``i``, the last row that of the bonus token.
        generator: on the device of the probabilities.

    Returns:
        int64 ``[2]`` on that device: the numbers of a :class:`Verdict`.
    """
    p, gamma = target_probabilities, len(drafted)
    if gamma == 0:
        return torch.cat((drafted.new_zeros(1), draw(p, generator)))
    # Behind the last drafted token the draft has no mass, so that all of the target's distribution is left over.
    q, drawn = torch.zeros_like(p), 0 if draft_probabilities is None else len(draft_probabilities)
    if draft_probabilities is not None:
        q[:drawn, : draft_probabilities.shape[-1]] = draft_probabilities
    q[drawn:gamma].scatter_(1, drafted[drawn:, None], 1.0)
    chances = p[:gamma].gather(1, drafted[:, None]) / q[:gamma].gather(1, drafted[:, None])
    flips = flip(chances[:, 0], generator)
    accepted = flips.long().cumprod(0).sum(0, keepdim=True)  # [1], those before the first that is false
    own = draw(residual(p.index_select(0, accepted), q.index_select(0, accepted)), generator)
    return torch.cat((accepted, own))


def accept_greedy(drafted: Sequence[int], best: Sequence[int]) -> Verdict:
    """:func:`accept` for a greedy target, from its most probable tokens alone, once they have been read.

    Args:
        best: ``g + 1`` or more tokens, the argmax of each row of the target's logits.
    """
    accepted = 0
    while accepted < len(drafted) and drafted[accepted] == best[accepted]:
        accepted += 1
    return Verdict(accepted, best[accepted])


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """What the target has more of than the draft, ``norm(max(p - q, 0))``.

    Args:
        target: ``[..., V]`` the target's distribution.
        draft: ``[..., W]`` the draft's; a narrower one has no mass on the ids it lacks.

    Returns:
        ``[..., V]``, summing to 1. Where the two agree to the last bit, nothing is left over: it is the target's own
        distribution, and rejections come from rounding.
    """
    difference = (target - functional.pad(draft, (0, target.shape[-1] - draft.shape[-1]))).clamp_min(0)
    mass = difference.sum(-1, keepdim=True)
    return torch.where(mass > 0, difference / mass, target)
