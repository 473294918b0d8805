"""Attention of the lean engine: causal over the cache, and branches off it.

Grouped queries never repeat keys in memory.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right

from draftgauge.models.attention_kernels import chosen_kernel
from draftgauge.models.lean_weights import LeanWeights

Mask = Tensor | CausalBias | None


def takes_causal_bias(like: Tensor) -> bool:
    """Whether attention over a cache like this one has a causal kernel that reads grouped keys once: flash attention,
    in half precision on a GPU.
    """
    return like.device.type == "cuda" and like.dtype != torch.float32


def causal_mask(new: int, length: int, weights: LeanWeights, like: Tensor) -> Mask:
    """What the last ``new`` of ``length`` tokens see: each all before it, and itself.

    Returns:
        None for one token, which sees everything; the bias of a causal kernel where there is one; else an additive mask
        ``[new G, length]``, rows by token, then query head of a group.
    """
    if new == 1:
        return None
    if takes_causal_bias(like):
        return causal_lower_right(new, length)
    group = weights.query_heads // weights.key_heads
    mask = torch.zeros(new, length, dtype=like.dtype, device=like.device)
    mask[:, length - new :].fill_(float("-inf")).triu_(1)
    return mask.repeat_interleave(group, 0) if group > 1 else mask


def attend_causally(queries: Tensor, cached: Tensor, key_heads: int, mask: Mask) -> Tensor:
    """Attention of new tokens over the cache that already holds them; keys are read once a group of query heads.

    With an additive mask, or none, the query heads of a group are laid side by side as more queries of one key head.

    Args:
        queries: ``[k, H, D]``.
        cached: ``[2 KV, L, D]``, keys then values.
        key_heads: ``KV``.
        mask: from :func:`causal_mask`.

    Returns:
        ``[k, H D]``.
    """
    new, heads, dim = queries.shape
    keys, values = cached[None, :key_heads], cached[None, key_heads:]
    if isinstance(mask, CausalBias):
        together = queries.transpose(0, 1)[None]  # [1, H, k, D]
        mixed = F.scaled_dot_product_attention(together, keys, values, attn_mask=mask, enable_gqa=heads > key_heads)
        return mixed[0].transpose(0, 1).reshape(new, heads * dim)
    group = heads // key_heads
    packed = queries.view(new, key_heads, group, dim).transpose(0, 1).reshape(1, key_heads, new * group, dim)
    mixed = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
    return mixed.view(key_heads, new, group, dim).transpose(0, 1).reshape(new, heads * dim)


def attention_names(weights: LeanWeights, cached: Tensor, fixed_shapes: bool) -> str:
    """The kernels that attention over a layer's cache ``[2 KV, L, D]`` runs with: of one token, and of several."""
    names = []
    for new in (1, 2):
        queries = cached.new_zeros(1, weights.query_heads, new, weights.head_dim)
        keys, values = cached[None, : weights.key_heads], cached[None, weights.key_heads :]
        mask = causal_mask(new, cached.shape[1], weights, cached)
        if fixed_shapes:
            mask = cached.new_zeros(new * weights.query_heads // weights.key_heads, cached.shape[1])
        if not isinstance(mask, CausalBias):
            queries = queries.view(1, weights.key_heads, -1, weights.head_dim)
        names.append(chosen_kernel(queries, keys, values, mask))
    return names[0] if names[0] == names[1] else f"{names[0]} for one token, {names[1]} for several"


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
