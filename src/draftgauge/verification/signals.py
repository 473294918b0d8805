"""What a distribution shows of how sure the model is."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def signals(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, entropy and margin of distributions at temperature 1, whatever temperature tokens are drawn at.

    Args:
        logits: ``[n, V]``, ``V`` at least 2.

    Returns:
        Three float32 ``[n]``: top-1 probability; entropy in bits; top-1 minus top-2 probability.
    """
    distribution = logits.float().softmax(-1)
    top = distribution.topk(2, dim=-1).values
    return top[:, 0], _bits(distribution), top[:, 0] - top[:, 1]


def confidences(logits: Tensor) -> Tensor:
    """Top-1 probability at temperature 1: ``[..., V]`` logits to float32 ``[...]``; the first of :func:`signals`, and cheaper alone."""
    return logits.float().softmax(-1).amax(-1)


def entropy_bits(logits: Tensor) -> Tensor:
    """Entropy in bits at temperature 1: ``[..., V]`` logits to float32 ``[...]``."""
    return _bits(logits.float().softmax(-1))


def _bits(distribution: Tensor) -> Tensor:
    # entr(0) is 0, where p * log(p) would be NaN for tokens that a model masks out with -inf.
    nats: Tensor = torch.special.entr(distribution).sum(-1)
    return nats / math.log(2)
