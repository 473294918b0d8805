"""The lean engine: a Llama-like decoder as plain functions over fused weights, with a cache whose rollback is one
integer.

A layer is about fifteen tensor operations, the cache is written in place, and rolling back sets a number.

Letters in shapes: ``k`` new tokens, ``L`` tokens in the cache after them, ``H`` query heads, ``KV`` key/value heads,
``D`` head dimension, ``N`` branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.models.base import BranchSession, HiddenStates, grown, room_for
from draftgauge.models.engines.lean_attention import Attend, BranchAttention, attend_over
from draftgauge.models.engines.lean_weights import LeanWeights, fuse
from draftgauge.models.spec import attention_kernels, check_context, check_starts, model_spec

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
