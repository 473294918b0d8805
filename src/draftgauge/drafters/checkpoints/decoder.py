"""What EAGLE-3 and DFlash drafters have in common: weights by name, heads, rotary embeddings, cache and branches.

Letters in shapes: ``R`` rows, ``B`` places of a block, ``Q`` query heads, ``KV`` key/value heads, ``D`` head dimension,
``H`` hidden size, ``V`` logits, ``L`` anchors, ``S`` tapped layers. An *anchor* is a position whose hidden states the
target has computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftgauge.drafters.checkpoints.layouts import DecoderSpec, Layout
from draftgauge.drafters.reuse.drafting import GrowingPair
from draftgauge.drafters.reuse.rotary import RotaryTables, Tables, rotate
from draftgauge.models.folder import explained


class Weights:
    """The tensors of a checkpoint by their names there, or those below a prefix."""

    def __init__(self, tensors: Mapping[str, Tensor], decoder: DecoderSpec, prefix: str = "") -> None:
        self._tensors, self._decoder, self._prefix = tensors, decoder, prefix

    def at(self, prefix: str) -> Weights:
        return Weights(self._tensors, self._decoder, f"{self._prefix}{prefix}.")

    def has(self, name: str) -> bool:
        return f"{self._prefix}{name}" in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[f"{self._prefix}{name}"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self[f"{name}.weight"], self[f"{name}.bias"] if self.has(f"{name}.bias") else None)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self[f"{name}.weight"], self._decoder.eps)

    def swiglu(self, x: Tensor) -> Tensor:
        gated = F.silu(self.linear("mlp.gate_proj", x)) * self.linear("mlp.up_proj", x)
        return self.linear("mlp.down_proj", gated)

    def queries(self, x: Tensor, tables: Tables) -> Tensor:
        """``[..., R, in]`` to ``[..., Q, R, D]``, rotated."""
        return rotate(self._heads("q", x), tables)

    def keys_values(self, x: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
        """``[..., R, in]`` to two ``[..., KV, R, D]``, the keys rotated."""
        return rotate(self._heads("k", x), tables), self._heads("v", x)

    def _heads(self, name: str, x: Tensor) -> Tensor:
        heads = self.linear(f"self_attn.{name}_proj", x).unflatten(-1, (-1, self._decoder.head_dim))
        if self.has(f"self_attn.{name}_norm.weight"):  # drafters of Qwen3's layers normalise queries and keys
            heads = self.norm(f"self_attn.{name}_norm", heads)
        return heads.transpose(-3, -2)


class Cache:
    """Keys and values of all anchors of the committed text, in every layer of the drafter."""

    def __init__(self, decoder: DecoderSpec, like: Tensor) -> None:
        self._layers = [GrowingPair(decoder.kv_heads, decoder.head_dim, like) for _ in range(decoder.layers)]
        self.length = 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Those ``[KV, n, D]`` of the anchors from ``length`` on; it grows when all layers have written."""
        self._layers[layer].reserve(self.length, self.length + keys.shape[1])
        self._layers[layer].write(self.length, (keys[None], values[None]))

    def view(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Two ``[1, KV, length, D]``."""
        return self._layers[layer].view(length)


class Branches(Protocol):
    """Drafts that grow together from consecutive anchors."""

    logits: Tensor
    """``[R, V]`` float32 of each draft's next token."""

    confidence: Tensor | None
    """``[R]`` chance that this token is accepted, by a head of the drafter; None if it has none."""

    def advance(self, tokens: Tensor) -> Tensor:
        """Take in a drafted token ``[R]`` (the target's ids) for each; the logits of the next."""


class DrafterNet(ABC):
    """A network that drafts from the target's hidden states.

    Attributes:
        d2t: ``[V]`` the target's ids of the tokens it drafts; None if it drafts all.
    """

    layout: Layout

    def __init__(self, layout: Layout, weights: Weights, embedding: Tensor, head: Tensor, d2t: Tensor | None) -> None:
        self.layout, self.weights, self.d2t = layout, weights, d2t
        self._embedding, self._head = embedding, head
        self._layers = [weights.at(f"layers.{layer}") for layer in range(layout.decoder.layers)]
        self._tables = rotary_tables(layout.decoder, "the drafter's rotary embedding")

    def begin(self) -> Cache:
        return Cache(self.layout.decoder, self._head)

    @abstractmethod
    def take_in(self, cache: Cache, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Add anchors with their states ``hidden [n, S, H]`` and the token ``[n]`` after each.

        Returns:
            What drafts from each of them begin with, ``[n, ...]``.
        """

    @abstractmethod
    def branches(self, cache: Cache, first: int, begin: Tensor) -> Branches: ...


def rotary_tables(decoder: DecoderSpec, where: str) -> RotaryTables:
    with explained(where):
        config = LlamaConfig(
            hidden_size=decoder.hidden_size,
            num_attention_heads=decoder.heads,
            head_dim=decoder.head_dim,
            **decoder.rope,
        )
        return RotaryTables(LlamaRotaryEmbedding(config))


def two_part_attention(
    queries: Tensor,
    shared: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    hidden: Tensor | None,
    own_hidden: Tensor | None,
) -> Tensor:
    """One softmax over keys that all rows share and keys of each row's block.

    Args:
        queries: ``[R, Q, B, D]``.
        shared: keys and values ``[1, KV, L, D]``.
        own: ``[R, KV, B, D]``.
        hidden: ``[R, B, L]`` true where a place does not see a shared key; None if it sees all.
        own_hidden: ``[B, B]`` likewise of the block.

    Returns:
        ``[R, B, Q * D]``.
    """
    rows, heads, places, dim = queries.shape
    key_heads = own[0].shape[1]
    grouped = (queries * dim**-0.5).reshape(rows, key_heads, -1, dim)  # [R, KV, G * B, D]
    far, near = grouped @ shared[0].mT, grouped @ own[0].mT
    repeated = heads // key_heads
    if hidden is not None:
        far = far.masked_fill(hidden[:, None].repeat(1, 1, repeated, 1), float("-inf"))
    if own_hidden is not None:
        near = near.masked_fill(own_hidden.repeat(repeated, 1), float("-inf"))
    weights = torch.cat((far, near), -1).softmax(-1, dtype=torch.float32).to(queries.dtype)
    length = shared[0].shape[2]
    mixed = weights[..., :length] @ shared[1] + weights[..., length:] @ own[1]
    return mixed.view(rows, heads, places, dim).transpose(1, 2).flatten(2)
