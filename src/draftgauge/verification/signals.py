"""What a distribution shows of how sure the model is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from draftgauge.core.signals import DISTRIBUTION, Reads, SignalName

ROWS_AT_ONCE = 32  # of a vocabulary of 152k tokens a distribution is 0.6 MB, and three copies of it exist


def signals(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Confidence, entropy and margin of distributions at temperature 1, whatever temperature tokens are drawn at.

    Args:
        logits: ``[n, V]``, ``V`` at least 2.

    Returns:
        Three float32 ``[n]``: top-1 probability; entropy in bits; top-1 minus top-2 probability.
    """
    parts = []
    for rows in logits.split(ROWS_AT_ONCE):
        distribution = rows.float().softmax(-1)
        top = distribution.topk(2, dim=-1).values
        parts.append((top[:, 0], _bits(distribution), top[:, 0] - top[:, 1]))
    confidence, entropy, margin = (torch.cat(each) for each in zip(*parts, strict=True))
    return confidence, entropy, margin


def read_signals(logits: Tensor, tokens: Tensor, reads: Reads) -> list[tuple[float, float, float, int]]:
    """Confidence, entropy and margin of distributions, and the tokens drafted from them, in one transfer from the
    device. Only what is read is computed; the rest is NaN.

    Args:
        logits: ``[n, V]``, ``V`` at least 2.
    """
    if not reads & DISTRIBUTION:
        return [(math.nan, math.nan, math.nan, token) for token in tokens.tolist()]
    distribution = logits.float().softmax(-1)
    columns = {"token": tokens}
    if SignalName.MARGIN in reads:
        first, second = distribution.topk(2, dim=-1).values.unbind(-1)
        columns |= {SignalName.MARGIN: first - second, SignalName.CONFIDENCE: first}
    elif SignalName.CONFIDENCE in reads:
        columns[SignalName.CONFIDENCE] = distribution.amax(-1)
    if SignalName.ENTROPY in reads:
        columns[SignalName.ENTROPY] = _bits(distribution)
    rows = torch.stack([column.double() for column in columns.values()]).tolist()
    shown = {name: row for name, row in zip(columns, rows, strict=True) if name in (*reads, "token")}
    missing = [math.nan] * len(tokens)
    parts = [shown.get(name, missing) for name in (SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN)]
    return list(zip(*parts, map(int, shown["token"]), strict=True))


def entropy_bits(logits: Tensor) -> Tensor:
    """Entropy in bits at temperature 1: ``[n, V]`` logits to float32 ``[n]``."""
    return torch.cat([_bits(rows.float().softmax(-1)) for rows in logits.split(ROWS_AT_ONCE)])


def _bits(distribution: Tensor) -> Tensor:
    # entr(0) is 0, where p * log(p) would be NaN for tokens that a model masks out with -inf.
    nats: Tensor = torch.special.entr(distribution).sum(-1)
    return nats / math.log(2)
