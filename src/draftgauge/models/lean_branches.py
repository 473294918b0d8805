"""Attention of the lean engine's branches: short continuations of one cached text that do not see each other."""

from __future__ import annotations

import torch
from torch import Tensor

from draftgauge.models.lean_weights import LeanWeights


class BranchAttention:
    """Attention of ``N`` branches, one new token each: over the shared prefix, masked, and the branch's own tokens.

    In float32 whatever the model's dtype: the fused kernels accumulate so too.
    """

    def __init__(self, prefix: Tensor, starts: Tensor, weights: LeanWeights) -> None:
        """Branches off a prefix ``[layers, 2 KV, L, D]``, each after its first ``starts[i]`` tokens."""
        self._key_heads, self._group = weights.key_heads, weights.query_heads // weights.key_heads
        self._scale, self._softcap, self._window = weights.score.scaling, weights.score.softcap, weights.window
        self._prefix = prefix.float()  # [layers, 2 KV, L, D]
        self._columns = torch.arange(prefix.shape[2], device=starts.device)
        hidden = self._columns >= starts[:, None]
        self._mask = torch.zeros(hidden.shape, device=starts.device).masked_fill_(hidden, float("-inf"))  # [N, L]
        self._next = starts  # [N] position of the next token
        self._own: dict[int, Tensor] = {}  # layer -> [N, 2 KV, tokens of the branch, D]

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        """Attend with rotated ``[N, H + 2 KV, D]``; ``[N, H D]``. A step begins with layer 0."""
        new = qkv[:, -2 * self._key_heads :, None].float()
        own = self._own[layer] = torch.cat((self._own[layer], new), 2) if layer in self._own else new
        if self._window is None:
            return self._attend(layer, qkv, own, self._mask)
        if layer == 0:  # the window moves with every token of a branch
            passed = self._columns <= self._next[:, None] - self._window.length
            self._near = self._mask.masked_fill(passed, float("-inf"))
            self._next = self._next + 1
        if not self._window.layers[layer]:
            return self._attend(layer, qkv, own, self._mask)
        return self._attend(layer, qkv, own[:, :, -self._window.length :], self._near)

    def keep(self, rows: Tensor) -> None:
        self._mask, self._next = self._mask[rows], self._next[rows]
        self._own = {layer: keys[rows] for layer, keys in self._own.items()}

    def _attend(self, layer: int, qkv: Tensor, own: Tensor, mask: Tensor) -> Tensor:
        branches, dim, kv = len(qkv), qkv.shape[-1], self._key_heads
        grouped = qkv[:, : -2 * kv].float().mul(self._scale).view(branches, kv, self._group, dim)
        keys, values = self._prefix[layer].split(kv)  # [KV, L, D]
        packed = grouped.transpose(0, 1).reshape(kv, branches * self._group, dim)
        before = torch.bmm(packed, keys.transpose(1, 2)).view(kv, branches, self._group, -1)
        inside = torch.matmul(grouped, own[:, :kv].transpose(2, 3)).transpose(0, 1)  # [KV, N, G, j]
        if self._softcap is not None:
            for scores in (before, inside):
                scores.div_(self._softcap).tanh_().mul_(self._softcap)
        before.add_(mask[:, None])
        weights = torch.cat((before, inside), -1).softmax(-1)
        far, near = weights.split((before.shape[-1], inside.shape[-1]), -1)
        mixed = torch.bmm(far.reshape(kv, branches * self._group, -1), values).view(kv, branches, self._group, dim)
        mixed = mixed.transpose(0, 1) + torch.matmul(near.transpose(0, 1), own[:, kv:])
        return mixed.reshape(branches, -1).to(qkv.dtype)
