"""How a pass over tokens of several rows is laid out: side by side for the linears, by row for attention.

Letters in shapes: ``T`` tokens of a pass, ``B`` rows that it spans, ``W`` most tokens of one of them, ``C`` places of
the cache that it sees, ``H`` query heads, ``KV`` key/value heads, ``G = H / KV``, ``D`` head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from draftgauge.models.lean_weights import Mix


class Shape(NamedTuple):
    """What a pass with fixed shapes must be recorded anew for.

    Attributes:
        first: of the rows that it spans, which lie side by side.
        rows: ``B``.
        tokens: ``T``.
        widest: ``W``.
        bucket: ``C``.
    """

    first: int
    rows: int
    tokens: int
    widest: int
    bucket: int

    @property
    def full(self) -> bool:
        """Whether every row has the same number of tokens."""
        return self.tokens == self.rows * self.widest


def lay_out(rows: Sequence[int], begins: Sequence[int], counts: Sequence[int], shape: Shape) -> list[int]:
    """For each token its row, its position and its slot in ``[B, W]``; then where each of the ``B`` rows begins.

    Args:
        rows: of the cache, each at most once.
        begins, counts: of each row the tokens that it holds, and those that it takes in.
        shape: of the pass.
    """
    owner: list[int] = []
    position: list[int] = []
    slot: list[int] = []
    starts = [0] * shape.rows
    for row, begin, count in zip(rows, begins, counts, strict=True):
        index = row - shape.first
        starts[index] = begin
        owner += [row] * count
        position += range(begin, begin + count)
        slot += range(index * shape.widest, index * shape.widest + count)
    return [*owner, *position, *slot, *starts]


def attend_by_row(queries: Tensor, seen: Tensor, mask: Tensor, slot: Tensor | None, mix: Mix) -> Tensor:
    """Attention of tokens over the rows that they belong to, which already hold them.

    Args:
        queries: ``[T, H, D]``.
        seen: ``[B, 2 KV, C, D]``, keys then values.
        mask: additive, ``[B, 1, W G, C]``, by token, then query head of a group.
        slot: ``[T]`` place of each token in ``[B, W]``; None where every row has ``W`` tokens, in order.
        mix: of the decoder.

    Returns:
        ``[T, H D]``.
    """
    (_, heads, dim), (rows, both) = queries.shape, seen.shape[:2]
    kv = both // 2
    group = heads // kv
    widest = mask.shape[2] // group
    laid = queries
    if slot is not None:
        laid = queries.new_zeros(rows * widest, heads, dim).index_copy_(0, slot, queries)
    packed = laid.reshape(rows, widest, kv, group, dim).transpose(1, 2).reshape(rows, kv, widest * group, dim)
    mixed = mix(packed, seen[:, :kv], seen[:, kv:], attn_mask=mask)
    mixed = mixed.view(rows, kv, widest, group, dim).transpose(1, 2).reshape(rows * widest, heads * dim)
    return mixed if slot is None else mixed.index_select(0, slot)
