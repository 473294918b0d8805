"""An EAGLE-3 drafter (Li et al. 2025, arXiv 2503.01840) as published.

Its first layer takes in a token's embedding beside a state: the target's fused hidden states at the first token of a
draft, its own output after that. Letters in shapes as in :mod:`draftgauge.drafters.checkpoints.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.drafters.checkpoints.decoder import Cache, DrafterNet
from draftgauge.drafters.checkpoints.layouts import Eagle3Layout
from draftgauge.drafters.reuse.attention import Heads, joint_attention
from draftgauge.drafters.reuse.rotary import window

Attend = Callable[[int, Heads], Tensor]
AT_ONCE = 512  # tokens of a prompt: without flash kernels attention takes memory by their square


class Eagle3Net(DrafterNet):
    layout: Eagle3Layout

    @torch.inference_mode()
    def take_in(self, cache: Cache, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The states ``[n, H]`` after the first depth of each anchor."""
        pieces = zip(tokens.split(AT_ONCE), hidden.split(AT_ONCE), strict=True)
        return torch.cat([self._take_in(cache, *piece) for piece in pieces])

    def _take_in(self, cache: Cache, tokens: Tensor, hidden: Tensor) -> Tensor:
        end = cache.length + len(tokens)

        def attend(layer: int, heads: Heads) -> Tensor:
            cache.write(layer, heads.keys, heads.values)
            return joint_attention(heads.queries[None], cache.view(layer, end), (), causal=len(tokens) > 1)[0]

        states = self._run(tokens, self._fuse(hidden.to(self._head.dtype)), cache.length, attend)
        cache.length = end
        return states

    def branches(self, cache: Cache, first: int, begin: Tensor) -> Eagle3Branches:
        return Eagle3Branches(self, cache, first, begin)

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(self.weights.norm("norm", states), self._head).float()

    def deepen(self, tokens: Tensor, states: Tensor, position: int, attend: Attend) -> Tensor:
        """One more depth of chains whose last states are these ``[R, H]``; ``position`` is that of the first row."""
        passed_on = self.weights.norm("norm", states) if self.layout.norm_output else states
        return self._run(tokens, passed_on, position, attend)

    def _fuse(self, hidden: Tensor) -> Tensor:
        weights, layout = self.weights, self.layout
        if layout.fc_norm:
            hidden = torch.stack([weights.norm(f"fc_norm.{tap}", part) for tap, part in enumerate(hidden.unbind(1))], 1)
        joined = hidden.flatten(1)
        return weights.linear("fc", weights.norm("input_norm", joined) if layout.norm_before_fc else joined)

    def _run(self, tokens: Tensor, states: Tensor, position: int, attend: Attend) -> Tensor:
        """All layers over rows at consecutive positions."""
        embedded = F.embedding(tokens, self._embedding)
        tables = window(self._tables(position + len(tokens), states), position, position + len(tokens))
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
    """Chains of drafted tokens from consecutive anchors."""

    confidence: Tensor | None = None

    def __init__(self, net: Eagle3Net, cache: Cache, first: int, begin: Tensor) -> None:
        self._net, self._cache, self._first, self._states = net, cache, first, begin
        self._own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(net.layout.decoder.layers)]
        self._depth = 0
        self.logits = net.logits(begin)

    @torch.inference_mode()
    def advance(self, tokens: Tensor) -> Tensor:
        length = self._first + len(self._states)
        self._depth += 1

        def attend(layer: int, heads: Heads) -> Tensor:
            self._own[layer].append((heads.keys[None], heads.values[None]))
            shared = self._cache.view(layer, length)
            return joint_attention(heads.queries[None], shared, self._own[layer], causal=len(self._states) > 1)[0]

        self._states = self._net.deepen(tokens, self._states, self._first + self._depth, attend)
        self.logits = self._net.logits(self._states)
        return self.logits
