"""What a distribution shows of how sure the model is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftgauge.core.signals import DISTRIBUTION, Reads, SignalName

IN_ORDER = (SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN)


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


def read_signals(logits: Tensor, reads: Reads) -> tuple[float, float, float]:
    """Confidence, entropy and margin of one distribution, computing only those that are read; NaN for the others.

    Args:
        logits: ``[1, V]``, ``V`` at least 2.
        reads: by a policy.
    """
    if not reads & DISTRIBUTION:
        return math.nan, math.nan, math.nan
    distribution = logits.float().softmax(-1)
    parts: dict[SignalName, Tensor] = {}
    if SignalName.MARGIN in reads:
        first, second = distribution.topk(2, dim=-1).values[0]
        parts = {SignalName.CONFIDENCE: first, SignalName.MARGIN: first - second}
    elif SignalName.CONFIDENCE in reads:
        parts[SignalName.CONFIDENCE] = distribution.amax()
    if SignalName.ENTROPY in reads:
        parts[SignalName.ENTROPY] = _bits(distribution)[0]
    wanted = [name for name in parts if name in reads]
    # One transfer from the device for all of them.
    values = [float(parts[wanted[0]])] if len(wanted) == 1 else torch.stack([parts[name] for name in wanted]).tolist()
    shown = dict(zip(wanted, values, strict=True))
    confidence, entropy, margin = (shown.get(name, math.nan) for name in IN_ORDER)
    return confidence, entropy, margin


def entropy_bits(logits: Tensor) -> Tensor:
    """Entropy in bits at temperature 1: ``[..., V]`` logits to float32 ``[...]``."""
    return _bits(logits.float().softmax(-1))


def _bits(distribution: Tensor) -> Tensor:
    # entr(0) is 0, where p * log(p) would be NaN for tokens that a model masks out with -inf.
    nats: Tensor = torch.special.entr(distribution).sum(-1)
    return nats / math.log(2)
