"""What EAGLE-3 and DFlash drafters have in common: weights by name, heads, rotary embeddings, cache and branches.

Letters in shapes: ``R`` rows, ``B`` places of a block, ``L`` anchors, ``S`` tapped layers, ``H`` hidden size, ``V``
logits. ``Q`` query heads, ``KV`` key/value heads, ``D`` head dimension. An *anchor* is a position whose hidden states
the target has computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftgauge.drafters.anchors import AnchorCache, Places
from draftgauge.drafters.formats.layout import DecoderSpec, Layout
from draftgauge.drafters.reuse.rotary import RotaryTables, Tables, rotate
from draftgauge.models.folder import explained

Embed = Callable[[Tensor], Tensor]  # token ids to embeddings
AT_ONCE = 512  # tokens of a prompt: attention takes memory by their product with those before


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


class Branches(Protocol):
    """Drafts that grow together from consecutive anchors."""

    logits: Tensor
    """``[R, V]`` float32 of each draft's next token."""

    confidence: Tensor | None
    """``[R]`` chance that this token is accepted, by a head of the drafter; None if it has none."""

    def advance(self, tokens: Tensor) -> Tensor:
        """Take in a drafted token ``[R]`` (the target's ids) for each; the logits of the next."""


class ChainBranches:
    """Drafts that go on from one chain, by ``run`` from it and their tokens to the next logits and a longer one."""

    confidence: Tensor | None = None

    def __init__(self, logits: Tensor, chain: Any, run: Callable[..., Any]) -> None:
        self.logits, self._chain, self._run = logits, chain, run

    def advance(self, tokens: Tensor) -> Tensor:
        self.logits, self._chain = self._run(self._chain, tokens)
        return self.logits


class DrafterNet(ABC):
    """A network that drafts from the target's hidden states.

    Attributes:
        d2t: ``[V]`` the target's ids of the tokens it drafts; None if it drafts all.
    """

    layout: Layout

    def __init__(self, layout: Layout, weights: Weights, embed: Embed, head: Tensor, d2t: Tensor | None) -> None:
        self.layout, self.weights, self.d2t = layout, weights, d2t
        self._embed, self._head = embed, head
        self._layers = [weights.at(f"layers.{layer}") for layer in range(layout.decoder.layers)]
        decoder = layout.decoder
        shape = {"hidden_size": decoder.hidden_size, "num_attention_heads": decoder.heads, "head_dim": decoder.head_dim}
        with explained("the drafter's rotary embedding"):
            self._tables = RotaryTables(LlamaRotaryEmbedding(LlamaConfig(**shape, **decoder.rope)))

    def with_layout(self, layout: Layout) -> Self:
        """The same weights with other settings."""
        return type(self)(layout, self.weights, self._embed, self._head, self.d2t)

    def begin(self) -> AnchorCache:
        decoder = self.layout.decoder
        return AnchorCache([decoder.kv_heads] * decoder.layers, decoder.head_dim, self._head, self._tables)

    @torch.inference_mode()
    def take_in(self, cache: AnchorCache, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Add anchors with their states ``hidden [n, S, H]`` and the token ``[n]`` after each.

        Returns:
            What drafts from each of them begin with, ``[n, ...]``.
        """
        pieces = zip(tokens.split(AT_ONCE), hidden.split(AT_ONCE), strict=True)
        return torch.cat([self.absorb(cache, cache.extend(len(part[0])), *part) for part in pieces])

    @abstractmethod
    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """:meth:`take_in` where the cache has made room, in shapes that depend on the number of new anchors alone."""

    @abstractmethod
    def run(self, cache: AnchorCache, *given: Any) -> Any:
        """What the branches run."""

    @abstractmethod
    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> Branches:
        """Drafts from the anchors from ``first`` on; ``run`` runs :meth:`run` with this cache."""
