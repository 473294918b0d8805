"""What a distribution shows of how sure the model is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from draftgauge.core.signals import Reads, SignalName

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
    wanted = _wanted(reads)
    values = [*_parts(logits, wanted), token]
    *shown, number = map(float, values) if token.device.type == "cpu" else (column[0] for column in _read(values))
    left = iter(shown)
    confidence, entropy, margin = (next(left) if each else math.nan for each in wanted)
    return confidence, entropy, margin, int(number)


def row_signals(logits: Tensor, tokens: Tensor, reads: Reads) -> list[tuple[float, float, float, int]]:
    """What :func:`read_signals` gives, of several distributions, in one transfer.

    Args:
        logits: ``[n, V]``, ``V`` at least 2.
        tokens: ``[n]`` int64.
        reads: by a policy.
    """
    wanted = _wanted(reads)
    *shown, numbers = _read([*_parts(logits, wanted), tokens])
    left, missing = iter(shown), [math.nan] * len(tokens)
    columns = [next(left) if each else missing for each in wanted]
    return list(zip(*columns, map(int, numbers), strict=True))


class _Wanted(NamedTuple):
    """Which signals to compute of a distribution, in the order in which they are read."""

    confidence: bool
    entropy: bool
    margin: bool


@cache
def _wanted(reads: Reads) -> _Wanted:
    """Found once a set, as asking a set for an enumeration's member runs Python."""
    return _Wanted(*(name in reads for name in IN_ORDER))


def _parts(logits: Tensor, wanted: _Wanted) -> list[Tensor]:
    """The signals that are wanted, each ``[n]`` on the device."""
    if not any(wanted):
        return []
    distribution = (logits if logits.dtype == torch.float32 else logits.float()).softmax(-1)
    parts: list[Tensor] = []
    if wanted.margin:
        first, second = distribution.topk(2, dim=-1).values.unbind(-1)
        parts = [first] if wanted.confidence else []
    elif wanted.confidence:
        parts.append(distribution.amax(-1))
    if wanted.entropy:
        parts.append(_bits(distribution))
    return [*parts, first - second] if wanted.margin else parts


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
