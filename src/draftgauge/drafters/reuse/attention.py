"""The attention of all designs: input projections, heads with rotary embedding, joint attention, output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.reuse.joint import joint_attention
from draftgauge.drafters.reuse.rotary import Tables, like, rotate


class Heads(NamedTuple):
    """Rotated queries ``[B, Q, R, D]``, rotated keys and values ``[B, KV, R, D]``."""

    queries: Tensor
    keys: Tensor
    values: Tensor

    def since(self, row: int) -> Heads:
        return Heads(*(part[:, :, row:] for part in self))


class Attention(nn.Module):
    """Attention that reads the token's embedding, the drafter's state, or both side by side.

    The linear of ``[embedding; state]`` is kept as two: the half of the embedding does not depend on the depth, so an
    unroll computes it once.
    """

    def __init__(
        self, hidden: int, query_heads: int, kv_heads: int, head_dim: int, reads_token: bool, reads_state: bool
    ) -> None:
        super().__init__()
        self.query_heads, self.kv_heads = query_heads, kv_heads
        width = (query_heads + 2 * kv_heads) * head_dim
        self.from_token = nn.Linear(hidden, width, bias=False) if reads_token else None
        self.from_state = nn.Linear(hidden, width, bias=False) if reads_state else None
        self.output = nn.Linear(query_heads * head_dim, hidden, bias=False)
        self.query_norm: nn.RMSNorm | None = None
        self.key_norm: nn.RMSNorm | None = None

    def normalise_heads(self, eps: float) -> None:
        """Normalise queries and keys by head, before they are rotated."""
        head_dim = self.output.in_features // self.query_heads
        self.query_norm, self.key_norm = nn.RMSNorm(head_dim, eps), nn.RMSNorm(head_dim, eps)

    def parts(self) -> dict[str, slice]:
        width = self.output.in_features // self.query_heads
        queries, keys = self.query_heads * width, (self.query_heads + self.kv_heads) * width
        return {"queries": slice(0, queries), "keys": slice(queries, keys), "values": slice(keys, None)}

    def match_queries_to_keys(self) -> None:
        for linear in (self.from_token, self.from_state):
            if linear is not None:
                heads = linear.weight.unflatten(0, (self.query_heads + 2 * self.kv_heads, -1))
                keys = heads[self.query_heads : self.query_heads + self.kv_heads]
                heads[: self.query_heads].copy_(keys.repeat_interleave(self.query_heads // self.kv_heads, 0))

    def token_part(self, normed: Tensor) -> Tensor:
        """The share of normalised embeddings ``[B, n, H]`` in queries, keys and values, ``[B, n, width]``."""
        assert self.from_token is not None
        return self.from_token(normed)

    def heads(self, token_part: Tensor | None, state: Tensor | None, tables: Tables) -> Heads:
        """Queries, keys and values of ``R`` rows at the positions of ``tables``.

        They are computed from the rows' tokens ``[B, R, width]`` (see :meth:`token_part`), from the normalised state
        ``[B, R, H]``, or from both.
        """
        projected = token_part
        if self.from_state is not None:
            read = self.from_state(state)
            projected = read if projected is None else projected + read
        assert projected is not None
        split = projected.unflatten(-1, (self.query_heads + 2 * self.kv_heads, -1)).transpose(1, 2)  # [B, heads, R, D]
        both = split[:, : -self.kv_heads]
        if self.query_norm is not None:
            queries, keys = both[:, : self.query_heads], both[:, self.query_heads :]
            both = torch.cat((_normed(self.query_norm, queries), _normed(self.key_norm, keys)), 1)
        rotated = rotate(both, like(tables, split))
        return Heads(rotated[:, : self.query_heads], rotated[:, self.query_heads :], split[:, -self.kv_heads :])

    def keys_values(self, state: Tensor, tables: Tables) -> KeysValues:
        """Keys and values ``[B, KV, n, D]`` of states ``[B, n, H]`` that are only attended to."""
        assert self.from_state is not None
        projected = F.linear(state, self.from_state.weight[self.parts()["keys"].start :])
        split = projected.unflatten(-1, (2 * self.kv_heads, -1)).transpose(1, 2)
        keys = _normed(self.key_norm, split[:, : self.kv_heads])
        return rotate(keys, like(tables, split)), split[:, self.kv_heads :]

    def forward(
        self,
        queries: Tensor,
        shared: KeysValues | None,
        own: Sequence[KeysValues],
        causal: bool,
        empty: Tensor | None = None,
    ) -> Tensor:
        mixed = joint_attention(queries, shared, own, causal, empty)
        return self.output(mixed.transpose(1, 2).flatten(2))


def _normed(norm: nn.RMSNorm | None, heads: Tensor) -> Tensor:
    if norm is None:
        return heads
    normed: Tensor = norm(heads.to(norm.weight.dtype))  # another one under autocast
    return normed.to(heads.dtype)
