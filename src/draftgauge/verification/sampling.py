"""How logits become probabilities, and how a token is drawn from them, for draft, target and verifier alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.signals import DISTRIBUTION, Reads, SignalName

NOT_FINITE = -1
"""Takes a token's place, in what is read from the device anyway, where its logits were not finite."""
_TINY = torch.finfo(torch.float32).tiny
_FIRST_WIDTH = 256  # tokens sorted at first for top-p, enough for most distributions


@dataclass(frozen=True)
class Sampling:
    """Which distribution tokens are drawn from.

    Attributes:
        temperature: logits are divided by it; 0 is greedy decoding, whatever the other two say.
        top_k: keep the ``top_k`` most probable tokens; 0 keeps all.
        top_p: of those, keep the fewest most probable tokens whose mass reaches ``top_p``; 1 keeps all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise DraftgaugeError(f"temperature must be 0 (greedy) or a positive number, not {self.temperature}")
        if 0 < self.temperature < _TINY:
            raise DraftgaugeError(
                f"temperature {self.temperature} is too small to divide by in float32: give {_TINY:.2g} or more, or "
                "0 for greedy decoding"
            )
        if self.top_k < 0:
            raise DraftgaugeError(f"top_k must be 0 (keep all tokens) or positive, not {self.top_k}")
        if not _TINY <= self.top_p <= 1:  # below it is 0 in float32, which keeps no token
            raise DraftgaugeError(f"top_p must be above 0 and at most 1 (keep all tokens), not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that tokens are drawn from.

    Temperature, then top-k, then top-p, as Hugging Face's logits warpers do them. At temperature 0 the lowest of tied
    token ids takes all. All tokens tied with the ``top_k``-th, or at the edge of the top-p mass, are kept. Of the
    latter transformers keeps some, by their order in its sort.

    Returns:
        float32 ``[..., V]`` of logits of that shape, each row summing to 1.
    """
    logits = logits.float()
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter_(-1, best, 1.0)
    # Shifting by the maximum first keeps a tiny temperature from overflowing to inf - inf.
    scores = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        threshold = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, -math.inf)
    distribution = scores.softmax(-1)
    if sampling.top_p < 1:
        distribution = distribution.masked_fill(distribution < _nucleus_edge(distribution, sampling.top_p), 0)
        distribution /= distribution.sum(-1, keepdim=True)
    return distribution


def _nucleus_edge(distribution: Tensor, top_p: float) -> Tensor:
    """The least probability in the fewest tokens whose mass reaches ``top_p``: ``[..., V]`` to ``[..., 1]``.

    Only as many of the highest probabilities as are needed are sorted: sorting the whole vocabulary takes longer than a
    pass of a small model.
    """
    vocabulary = distribution.shape[-1]
    width = min(_FIRST_WIDTH, vocabulary)
    while True:
        descending = distribution.topk(width, dim=-1).values
        mass = descending.cumsum(-1)
        if width == vocabulary or bool((mass[..., -1] >= top_p).all()):
            break
        width = min(8 * width, vocabulary)
    inside = (mass - descending < top_p).sum(-1, keepdim=True)  # a token is inside if those above it do not reach top_p
    return descending.gather(-1, (inside - 1).clamp_min(0))  # none is inside where the distribution is NaN


def draw(weights: Tensor, generator: Generator | None) -> Tensor:
    """Draw one index from each row of weights, by inverting the cumulative sum.

    The uniform number is from (0, 1], which cannot land on an index of weight 0. It is float64, whose resolution is far
    below any probability that a float32 softmax yields.

    Args:
        weights: ``[..., V]``, non-negative, not all zero; they need not sum to 1.

    Returns:
        int64 ``[...]``; ``NOT_FINITE`` for a row with a weight that is not a finite number.
    """
    cumulative = weights.double().cumsum(-1)
    uniform = 1 - torch.rand(weights.shape[:-1], dtype=torch.float64, device=weights.device, generator=generator)
    drawn = torch.searchsorted(cumulative, (uniform * cumulative[..., -1]).unsqueeze(-1)).squeeze(-1)
    return torch.where(_finite(cumulative[..., -1]), drawn, NOT_FINITE)


def best_tokens(logits: Tensor) -> Tensor:
    """The most probable token of each row, the lowest of tied ids: ``[..., V]`` to int64 ``[...]``.

    ``NOT_FINITE`` where a logit is NaN or infinite; ``-inf`` masks a token and is not meant.
    """
    best = logits.max(-1)  # NaN counts as the largest
    return torch.where(_finite(best.values), best.indices, NOT_FINITE)


def _finite(values: Tensor) -> Tensor:
    return values - values == 0  # half the launches of isfinite


def check_finite(tokens: Sequence[int], model: str, position: int | None = None) -> None:
    """Check tokens that were just read from the device.

    Args:
        model: whose logits they are from, in words.
        position: where in the text the pass began, in tokens, if known.

    Raises:
        ModelError: if logits were not finite.
    """
    if min(tokens) == NOT_FINITE:
        where = "" if position is None else f" from token {position} of the text on"
        raise ModelError(
            f"the logits of the {model} are NaN or infinite{where}: either activations overflow in float16 (load it in "
            "bfloat16 or float32), or its weights are damaged (download them again)"
        )


def flip(chances: Tensor, generator: Generator | None) -> Tensor:
    """Independent coins: boolean, true with the given chances (1 or more is certain), any shape."""
    return torch.rand(chances.shape, dtype=chances.dtype, device=chances.device, generator=generator) < chances


def choose(logits: Tensor, sampling: Sampling, generator: Generator | None) -> Tensor:
    """The next token of each row: the most probable one if greedy, else drawn.

    Returns:
        int64 ``[...]`` from logits ``[..., V]``; ``NOT_FINITE`` where logits are not finite.
    """
    if sampling.greedy:
        return best_tokens(logits)
    return draw(probabilities(logits, sampling), generator)


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
