"""What a distribution shows of how sure the model is."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def read_signals(logits: Tensor, token: Tensor, reads: Reads) -> tuple[float, float, float, int]:
    """Confidence, entropy and margin of one distribution, computing only those that are read, and the token drafted
    from it; NaN for what is not read. The device is waited for once.

    Args:
        logits: ``[1, V]``, ``V`` at least 2.
        token: ``[1]`` int64.
        reads: by a policy.
    """
    parts = _parts(logits, reads)
    values = [*parts.values(), token]
    *shown, number = map(float, values) if token.device.type == "cpu" else (column[0] for column in _read(values))
    by_name = dict(zip(parts, shown, strict=True))
    confidence, entropy, margin = (by_name.get(name, math.nan) for name in IN_ORDER)
    return confidence, entropy, margin, int(number)


def row_signals(logits: Tensor, tokens: Tensor, reads: Reads) -> list[tuple[float, float, float, int]]:
    """What :func:`read_signals` gives, of several distributions, in one transfer.

    Args:
        logits: ``[n, V]``, ``V`` at least 2.
        tokens: ``[n]`` int64.
        reads: by a policy.
    """
    parts = _parts(logits, reads)
    *shown, numbers = _read([*parts.values(), tokens])
    by_name, missing = dict(zip(parts, shown, strict=True)), [math.nan] * len(tokens)
    columns = (by_name.get(name, missing) for name in IN_ORDER)
    return list(zip(*columns, map(int, numbers), strict=True))


def _parts(logits: Tensor, reads: Reads) -> dict[SignalName, Tensor]:
    """The signals that are read, each ``[n]`` on the device."""
    parts: dict[SignalName, Tensor] = {}
    if not reads & DISTRIBUTION:
        return parts
    distribution = logits.float().softmax(-1)
    if SignalName.MARGIN in reads:
        first, second = distribution.topk(2, dim=-1).values.unbind(-1)
        parts = {SignalName.CONFIDENCE: first, SignalName.MARGIN: first - second}
    elif SignalName.CONFIDENCE in reads:
        parts[SignalName.CONFIDENCE] = distribution.amax(-1)
    if SignalName.ENTROPY in reads:
        parts[SignalName.ENTROPY] = _bits(distribution)
    return {name: part for name, part in parts.items() if name in reads}


def _read(columns: Sequence[Tensor]) -> list[list[float]]:
    """Numbers ``[n]`` of a device, in one transfer; on a CPU, where reading is free, column by column."""
    if columns[0].device.type == "cpu":
        return [column.tolist() for column in columns]
    return torch.stack([column.double() for column in columns]).tolist()


def entropy_bits(logits: Tensor) -> Tensor:
    """Entropy in bits at temperature 1: ``[..., V]`` logits to float32 ``[...]``."""
    return _bits(logits.float().softmax(-1))


def _bits(distribution: Tensor) -> Tensor:
    # entr(0) is 0, where p * log(p) would be NaN for tokens that a model masks out with -inf.
    nats: Tensor = torch.special.entr(distribution).sum(-1)
    return nats / math.log(2)
