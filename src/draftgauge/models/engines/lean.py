"""The lean engine: a Llama-like decoder as plain functions over fused weights, with a cache whose rollback is one
integer.

A layer is about fifteen tensor operations, the cache is written in place, and rolling back sets a number.
Attention over the cache, causal or within a window, never repeats keys in memory.

Letters in shapes: ``k`` new tokens, ``L`` tokens in the cache after them, ``H`` query heads, ``KV`` key/value heads,
``D`` head dimension, ``N`` branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, causal_lower_right
from transformers import PreTrainedModel

from draftgauge.models.base import BranchSession, HiddenStates, grown, room_for
from draftgauge.models.engines.lean_weights import LeanWeights, fuse
from draftgauge.models.spec import attention_kernels, check_context, check_starts, model_spec

Attend = Callable[[int, Tensor], Tensor]
Mask = Tensor | CausalBias | None


def attend_over(weights: LeanWeights, cache: Tensor, begin: int, end: int) -> Attend:
    """Attention of the tokens ``begin .. end - 1`` over a cache ``[layers, 2 KV, capacity, D]`` that takes them in.

    Called with a layer and its rotated queries and keys and the values, ``[k, H + 2 KV, D]``; gives ``[k, H D]``.
    """
    new, window = end - begin, weights.window
    far = cache[:, :, :end], _mask(new, end, weights, cache)
    seen = [far] * len(weights.layers)
    if window is not None and end > window.length:  # layers that slide see only keys that a new token still reaches
        reached = min(end, window.length + new - 1)
        near = cache[:, :, end - reached : end], _mask(new, reached, weights, cache, window.length)
        seen = [near if slides else far for slides in window.layers]
    written = cache[:, :, begin:end]
    heads, kv, dim, mix = weights.query_heads, weights.key_heads, weights.head_dim, weights.mix
    group = heads // kv

    def attend(layer: int, qkv: Tensor) -> Tensor:
        queries = qkv[:, :heads]
        written[layer].copy_(qkv[:, heads:].transpose(0, 1))
        cached, mask = seen[layer]
        keys, values = cached[layer][None].split(kv, 1)
        if isinstance(mask, CausalBias):
            together = queries.transpose(0, 1)[None]  # [1, H, k, D]
            mixed = mix(together, keys, values, attn_mask=mask, enable_gqa=group > 1)
            return mixed[0].transpose(0, 1).reshape(new, heads * dim)
        # The query heads of a group are more queries of one key head, so that keys are read once a group.
        packed = queries.view(new, kv, group, dim).transpose(0, 1).reshape(1, kv, new * group, dim)
        mixed = mix(packed, keys, values, attn_mask=mask)
        return mixed.view(kv, new, group, dim).transpose(0, 1).reshape(new, heads * dim)

    return attend


def _mask(new: int, length: int, weights: LeanWeights, like: Tensor, window: int | None = None) -> Mask:
    """What the last ``new`` of ``length`` tokens see: itself, and each all before it, or those within a window.

    None for one token, and the bias of a causal kernel where there is one. Else an additive mask ``[new G, length]``,
    rows by token, then query head of a group.
    """
    if new == 1:
        return None
    if window is None and like.device.type == "cuda" and like.dtype != torch.float32 and weights.score.softcap is None:
        return causal_lower_right(new, length)
    hidden = torch.full((new, length), float("-inf"), dtype=like.dtype, device=like.device)
    itself = length - new  # column of the first token
    mask = hidden.triu(itself + 1)
    if window is not None:
        mask += hidden.tril(itself - window)
    return mask.repeat_interleave(weights.query_heads // weights.key_heads, 0)


def masks_by_layer(
    weights: LeanWeights, columns: Tensor, positions: Tensor, limits: tuple[Tensor, ...]
) -> Sequence[Tensor]:
    """Additive masks ``[..., C]``, one for each layer, of tokens whose positions ``[..., 1]`` are tensors.

    ``columns`` ``[C]`` are positions of the keys; ``limits`` is added to the score of a visible key, and of another
    one.
    """
    window, (visible, hidden) = weights.window, limits
    causal = columns <= positions
    if window is None or len(columns) <= window.length:
        return [torch.where(causal, visible, hidden)] * len(weights.layers)
    near = torch.where(causal & (columns > positions - window.length), visible, hidden)
    far = near if all(window.layers) else torch.where(causal, visible, hidden)
    return [near if slides else far for slides in window.layers]


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


PREFILL_CHUNK = 512  # tokens of a long prompt that go through together: bounds the mask and the activations

Keep = Callable[[int, Tensor], object]


class LeanModel:
    """:class:`~draftgauge.models.base.CachedModel` for ``lean_weights.FAMILIES``; its cache grows by doubling.

    Logits agree with transformers' modules up to the rounding of differently ordered sums.
    """

    engine: ClassVar[str] = "lean"

    _cache: Tensor  # [layers, 2 KV, capacity, D]: keys first, then values
    _cos: Tensor
    _sin: Tensor

    def __init__(self, model: PreTrainedModel, owned: bool = False, dtype: torch.dtype | None = None) -> None:
        self.skeleton = model.eval()
        self._weights = fuse(model, owned, dtype)
        self.spec = model_spec(model, self.engine)
        self.hidden: HiddenStates | None = None  # filled by every forward where there is one
        self._length = 0
        shape = len(self._weights.layers), 2 * self._weights.key_heads, 0, self._weights.head_dim
        self._cache = torch.empty(shape, dtype=self.spec.dtype, device=self.spec.device)
        with torch.inference_mode():
            self._grow(0)

    @property
    def module(self) -> PreTrainedModel:
        """The transformers model with all its weights: those that were packed are from then on held twice."""
        self._weights.packing.restore()
        return self.skeleton

    @module.setter
    def module(self, model: PreTrainedModel) -> None:
        self.skeleton = model

    @property
    def length(self) -> int:
        return self._length

    @property
    def _capacity(self) -> int:
        return self._cache.shape[2]

    def reset(self) -> None:
        self._length = 0

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        self._length = length

    @torch.inference_mode()
    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        self._reserve(len(tokens))
        chunks = []  # hidden states [k, hidden]
        with attention_kernels(self.spec.device):
            for chunk in tokens.split(PREFILL_CHUNK):
                begin, end = self._length, self._length + len(chunk)
                attend = attend_over(self._weights, self._cache, begin, end)
                keep = None if self.hidden is None else self.hidden.keep(begin, end)
                cos, sin = self._cos[begin:end], self._sin[begin:end]
                chunks.append(run_layers(self._weights, chunk, cos, sin, attend, keep))
                self._length = end
            return logits(self._weights, chunks[-1][-1:] if last_only else torch.cat(chunks))

    def branches(self, starts: Tensor) -> BranchSession:
        check_starts(int(starts.min()), int(starts.max()), self._length)
        return LeanBranches(self, starts)

    def keys_values(self, layer: int) -> tuple[Tensor, Tensor]:
        """A decoder layer's rotated keys, and values, ``[KV, length, D]`` each: views until the next ``forward``."""
        keys, values = self._cache[layer, :, : self._length].split(self._weights.key_heads)
        return keys, values

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Rotary tables of at least ``length`` positions, ``[positions, bases, D]``, from transformers' own module."""
        if length > len(self._cos):
            check_context(self.spec, length)
            self._cos, self._sin = _rotary_tables(self._weights, length)
        return self._cos, self._sin

    def _reserve(self, count: int) -> None:
        end = self._length + count
        if end > self._capacity:
            check_context(self.spec, end)
            self._grow(end)

    def _grow(self, end: int) -> None:
        """Make room for a text of this length."""
        layers, heads, held, dim = self._cache.shape
        capacity = min(room_for(end, held), self.spec.context)
        self._cache = grown(self._cache, layers, heads, capacity, dim)
        self._cos, self._sin = _rotary_tables(self._weights, capacity)


class LeanBranches:
    """:class:`~draftgauge.models.base.BranchSession` of the lean engine: a shared prefix, own keys for each branch."""

    def __init__(self, model: LeanModel, starts: Tensor) -> None:
        self._model = model
        self._weights = model._weights
        self._positions, self._end = starts, int(starts.max())  # of the next tokens, and the highest of them
        self._attention = BranchAttention(model._cache[:, :, : self._end], starts, self._weights)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        cos, sin = self._model.rotary(self._end + 1)
        hidden = run_layers(self._weights, tokens, cos[self._positions], sin[self._positions], self._attention)
        self._positions = self._positions + 1
        self._end += 1
        return logits(self._weights, hidden)

    def keep(self, rows: Tensor) -> None:
        self._positions = self._positions[rows]
        self._end = int(self._positions.max()) if len(rows) else 0
        self._attention.keep(rows)


def run_layers(
    weights: LeanWeights, tokens: Tensor, cos: Tensor, sin: Tensor, attend: Attend, keep: Keep | None = None
) -> Tensor:
    """Hidden states ``[k, hidden]`` of tokens ``[k]`` after the last layer, before the final norm.

    Args:
        cos, sin: rotary tables of the tokens' positions, ``[k, bases, D]``.
        attend: of a layer and its rotated queries and keys and values ``[k, H + 2 KV, D]``; returns ``[k, H D]``.
        keep: called with every layer and its output ``[k, hidden]``, which goes on changing.
    """
    heads = weights.query_heads + weights.key_heads
    shape = (tokens.size(0), heads + weights.key_heads, weights.head_dim)
    x = weights.embed(tokens)
    for index, layer in enumerate(weights.layers):
        qkv = layer.qkv(layer.input_norm(x)).view(shape)
        layer.rotate(qkv[:, :heads], cos, sin)
        layer.output(x, attend(index, qkv))
        layer.mlp(x)
        if keep is not None:
            keep(index, x)
    return x


def logits(weights: LeanWeights, hidden: Tensor) -> Tensor:
    """float32 logits ``[k, vocabulary]`` of hidden states ``[k, hidden]``."""
    scores = weights.head(weights.norm(hidden))
    return scores if scores.dtype == torch.float32 else scores.float()


def _rotary_tables(weights: LeanWeights, length: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(length, device=weights.embedding.device)[None]
    tables = [rotary(weights.embedding, positions) for rotary in weights.rotaries]  # each [1, positions, D]
    cos, sin = (torch.cat(each).transpose(0, 1).contiguous() for each in zip(*tables, strict=True))
    half = weights.head_dim // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), -1)  # rotate_half(x) * sin == roll(x, D / 2) * signed
