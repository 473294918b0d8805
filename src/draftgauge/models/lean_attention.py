"""Attention of the lean engine: causal over the cache, and branches off it.

Grouped queries never repeat keys in memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.models.lean_weights import LeanWeights


def causal_mask(new: int, length: int, weights: LeanWeights, like: Tensor) -> Tensor | None:
    """Additive mask ``[new G, length]`` for the last ``new`` of ``length`` tokens, rows by token, then query head of a
    group.

    None for one token, which sees everything.
    """
    if new == 1:
        return None
    group = weights.query_heads // weights.key_heads
    mask = torch.zeros(new, length, dtype=like.dtype, device=like.device)
    mask[:, length - new :].fill_(float("-inf")).triu_(1)
    return mask.repeat_interleave(group, 0) if group > 1 else mask


def attend_causally(queries: Tensor, cached: Tensor, key_heads: int, mask: Tensor | None) -> Tensor:
    """Attention of new tokens over the cache that already holds them.

    The query heads of a group are laid side by side as more queries of one key head, so that keys are read once a
    group.

    Args:
        queries: ``[k, H, D]``.
        cached: ``[2 KV, L, D]``, keys then values.
        key_heads: ``KV``.
        mask: from :func:`causal_mask`.

    Returns:
        ``[k, H D]``.
    """
    new, heads, dim = queries.shape
    group = heads // key_heads
    packed = queries.view(new, key_heads, group, dim).transpose(0, 1).reshape(1, key_heads, new * group, dim)
    mixed = F.scaled_dot_product_attention(packed, cached[None, :key_heads], cached[None, key_heads:], attn_mask=mask)
    return mixed.view(key_heads, new, group, dim).transpose(0, 1).reshape(new, heads * dim)


class BranchAttention:
    """Attention of ``N`` branches, one new token each: over the shared prefix, masked, and over the branch's own
    tokens.

    In float32 whatever the model's dtype: the fused kernels accumulate so too.
    """

    def __init__(self, prefix: Tensor, starts: Tensor, weights: LeanWeights) -> None:
        self._key_heads, self._group = weights.key_heads, weights.query_heads // weights.key_heads
        self._scale = weights.head_dim**-0.5
        self._prefix = prefix.float()  # [layers, 2 KV, L, D]
        hidden = torch.arange(prefix.shape[2], device=starts.device) >= starts[:, None]
        self._mask = torch.zeros(hidden.shape, device=starts.device).masked_fill_(hidden, float("-inf"))  # [N, L]
        self._own: dict[int, Tensor] = {}  # layer -> [N, 2 KV, tokens of the branch, D]

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Attend with rotated ``[N, H + 2 KV, D]``; ``[N, H D]``."""
        branches, dim, kv = len(qkv), qkv.shape[-1], self._key_heads
        rest, new = qkv[:, : -2 * kv].float().mul(self._scale), qkv[:, -2 * kv :, None].float()
        own = self._own[layer] = torch.cat((self._own[layer], new), 2) if layer in self._own else new
        grouped = rest.view(branches, kv, self._group, dim)
        keys, values = self._prefix[layer].split(kv)  # [KV, L, D]
        packed = grouped.transpose(0, 1).reshape(kv, branches * self._group, dim)
        before = torch.bmm(packed, keys.transpose(1, 2)).view(kv, branches, self._group, -1)
        before.add_(self._mask[:, None])
        inside = torch.matmul(grouped, own[:, :kv].transpose(2, 3)).transpose(0, 1)  # [KV, N, G, j]
        weights = torch.cat((before, inside), -1).softmax(-1)
        far, near = weights.split((before.shape[-1], inside.shape[-1]), -1)
        mixed = torch.bmm(far.reshape(kv, branches * self._group, -1), values).view(kv, branches, self._group, dim)
        mixed = mixed.transpose(0, 1) + torch.matmul(near.transpose(0, 1), own[:, kv:])
        return mixed.reshape(branches, -1).to(qkv.dtype)

    def keep(self, rows: Tensor) -> None:
        """Go on with these branches only."""
        self._mask = self._mask[rows]
        self._own = {layer: keys[rows] for layer, keys in self._own.items()}
