"""An EAGLE-3 drafter (Li et al. 2025, arXiv 2503.01840) as published.

Its first layer takes in a token's embedding beside a state: the target's fused hidden states at the first token of a
draft, its own output after that. Letters in shapes as in :mod:`draftgauge.drafters.formats.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.drafters.anchors import DEEPEST, AnchorCache, KeysValues, Places
from draftgauge.drafters.formats.decoder import DrafterNet
from draftgauge.drafters.formats.layouts import Eagle3Layout
from draftgauge.drafters.reuse.attention import Heads
from draftgauge.drafters.reuse.joint import joint_attention
from draftgauge.drafters.reuse.rotary import Tables, window

Attend = Callable[[int, Heads], Tensor]


class Eagle3Chain(NamedTuple):
    """Chains of drafted tokens from consecutive anchors; never changed.

    Attributes:
        states: the last ones ``[R, H]``.
        own: keys and values of each layer, by depth.
        unseen: ``[C]`` true for places of the cache that a chain does not see, where it is the only one.
        seen: how many places the last of several chains sees, each one less than the next; 0 for a single one.
        ahead: rotary tables from the position of the first anchor on.
    """

    depth: int
    states: Tensor
    own: tuple[tuple[KeysValues, ...], ...]
    unseen: Tensor | None
    seen: int
    ahead: Tables


class Eagle3Net(DrafterNet):
    layout: Eagle3Layout

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The states ``[n, H]`` after the first depth of each anchor."""
        many = len(tokens) > DEEPEST  # through the flash kernels, where there are any; else in shapes that are recorded
        unseen = None if many else torch.arange(cache.capacity, device=tokens.device) > places.at[:, None]

        def attend(layer: int, heads: Heads) -> Tensor:
            cache.write(layer, places.at, (heads.keys[None], heads.values[None]))
            shared = cache.view(layer, cache.length if many else cache.capacity)
            return joint_attention(heads.queries[None], shared, (), many, unseen)[0]

        weights, hidden = self.weights, hidden.to(self._head.dtype)
        if self.layout.fc_norm:
            hidden = torch.stack([weights.norm(f"fc_norm.{tap}", part) for tap, part in enumerate(hidden.unbind(1))], 1)
        joined = hidden.flatten(1)
        fused = weights.linear("fc", weights.norm("input_norm", joined) if self.layout.norm_before_fc else joined)
        return self._run(tokens, fused, window(places.tables, 0, len(tokens)), attend)

    @torch.inference_mode()
    def run(self, cache: AnchorCache, chain: Eagle3Chain, tokens: Tensor) -> tuple[Tensor, Eagle3Chain]:
        """One more depth, for a token ``[R]`` of each chain: logits ``[R, V]`` and the longer chains."""
        own = list(chain.own)

        def attend(layer: int, heads: Heads) -> Tensor:
            own[layer] = (*own[layer], (heads.keys[None], heads.values[None]))
            shared = cache.view(layer, chain.seen or cache.capacity)
            return joint_attention(heads.queries[None], shared, own[layer], chain.seen > 0, chain.unseen)[0]

        depth = chain.depth + 1
        passed_on = self.weights.norm("norm", chain.states) if self.layout.norm_output else chain.states
        states = self._run(tokens, passed_on, window(chain.ahead, depth, depth + len(tokens)), attend)
        return self.logits(states), chain._replace(depth=depth, states=states, own=tuple(own))

    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> Eagle3Branches:
        own: tuple[tuple[KeysValues, ...], ...] = ((),) * len(self._layers)
        end, seen = first + len(begin) + DEEPEST, first + len(begin) if len(begin) > 1 else 0
        unseen = None if seen else torch.arange(cache.capacity, device=begin.device) > first
        chain = Eagle3Chain(0, begin, own, unseen, seen, window(self._tables(end, begin), first, end))
        return Eagle3Branches(self.logits(begin), chain, run or partial(self.run, cache))

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.weights.norm("norm", states), self._head).float()

    def _run(self, tokens: Tensor, states: Tensor, tables: Tables, attend: Attend) -> Tensor:
        """All layers over rows."""
        embedded = self._embed(tokens)
        for number, layer in enumerate(self._layers):
            residual = states
            if layer.has("hidden_norm.weight"):  # takes in the token
                normed = layer.norm("hidden_norm", states)
                residual = normed if self.layout.norm_before_residual else states
                entering = torch.cat((layer.norm("input_layernorm", embedded), normed), -1)
            else:
                entering = layer.norm("input_layernorm", states)
            heads = Heads(layer.queries(entering, tables), *layer.keys_values(entering, tables))
            mixed = attend(number, heads).transpose(0, 1).flatten(1)
            states = residual + layer.linear("self_attn.o_proj", mixed)
            states = states + layer.swiglu(layer.norm("post_attention_layernorm", states))
        return states


class Eagle3Branches:
    """The chains while they grow."""

    confidence: Tensor | None = None

    def __init__(self, logits: Tensor, chain: Eagle3Chain, run: Callable[..., Any]) -> None:
        self.logits, self._chain, self._run = logits, chain, run

    def advance(self, tokens: Tensor) -> Tensor:
        self.logits, self._chain = self._run(self._chain, tokens)
        return self.logits
