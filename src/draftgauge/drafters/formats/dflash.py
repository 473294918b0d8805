"""DFlash (arXiv 2602.06036), which drafts a block in one pass, and DSpark, which adds two heads to it.

The keys and values of the committed text are made of the target's fused hidden states, those of the block of its
tokens: the last committed one and masks. Letters in shapes as in :mod:`draftgauge.drafters.formats.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from draftgauge.drafters.anchors import AnchorCache, Places
from draftgauge.drafters.formats.decoder import DrafterNet
from draftgauge.drafters.formats.layouts import DFlashLayout
from draftgauge.drafters.reuse.blockwise import block_attention
from draftgauge.drafters.reuse.rotary import Tables, window


class DFlashNet(DrafterNet):
    layout: DFlashLayout

    def absorb(self, cache: AnchorCache, places: Places, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The token ``[n]`` after each anchor."""
        fused = self.weights.norm("hidden_norm", self.weights.linear("fc", hidden.to(self._head.dtype).flatten(1)))
        for number, layer in enumerate(self._layers):
            keys, values = layer.keys_values(fused, window(places.tables, 0, len(tokens)))
            cache.write(number, places.at, (keys[None], values[None]))
        return tokens.clone()

    @torch.inference_mode()
    def branches(
        self, cache: AnchorCache, first: int, begin: Tensor, run: Callable[..., Any] | None = None
    ) -> DFlashBranches:
        row, place = (torch.arange(count, device=begin.device) for count in (len(begin), self.layout.block))
        positions = first + 1 + row[:, None] + place  # [R, B]
        cos, sin = self._tables(first + len(begin) + self.layout.block, self._head)
        states = (run or partial(self.run, cache))(begin, positions, (cos[positions][:, None], sin[positions][:, None]))
        states = states[:, 0 if self.layout.from_anchor else 1 :]
        logits, cap = F.linear(states, self._head).float(), self.layout.softcap
        if self.layout.logit_scale != 1:
            logits = logits * self.layout.logit_scale
        return DFlashBranches(self, begin, states, (logits / cap).tanh() * cap if cap else logits)

    def run(self, cache: AnchorCache, tokens: Tensor, positions: Tensor, tables: Tables) -> Tensor:
        """States ``[R, B, H]`` of the blocks that begin with these tokens ``[R]``, at positions ``[R, B]``."""
        layout = self.layout
        masks = tokens.new_full((len(tokens), layout.block - 1), layout.mask_token)
        states = self._embed(torch.cat((tokens[:, None], masks), 1)) * layout.embedding_scale
        place = torch.arange(layout.block, device=tokens.device)
        for number, layer in enumerate(self._layers):
            entering = layer.norm("input_layernorm", states)
            queries, own = layer.queries(entering, tables), layer.keys_values(entering, tables)
            unseen = self._unseen(positions, cache.capacity, layout.windows[number])
            behind = place > place[:, None] if layout.causal[number] else None
            mixed = block_attention(queries, [cache.pairs[number]], own, unseen[:, None], layout.block, behind)
            states = states + layer.linear("self_attn.o_proj", mixed.transpose(1, 2).flatten(2))
            states = states + layer.swiglu(layer.norm("post_attention_layernorm", states))
        return self.weights.norm("norm", states)

    def _unseen(self, positions: Tensor, capacity: int, reach: int | None) -> Tensor:
        """``[R, B, C]`` true for places of the cache that one of a block does not see: of later rows or of none, or
        outside its window.
        """
        anchors = torch.arange(capacity, device=positions.device)
        unseen = (anchors >= positions[:, :1, None]).expand(-1, positions.shape[1], -1)
        if reach is None:
            return unseen
        if self.layout.window_from_anchor:
            return unseen | (anchors < positions[:, :1, None] - reach)
        return unseen | (anchors <= positions[:, :, None] - reach)


class DFlashBranches:
    """Blocks from consecutive anchors, read off place by place."""

    def __init__(self, net: DFlashNet, tokens: Tensor, states: Tensor, logits: Tensor) -> None:
        self._net, self._states, self._block_logits = net, states, logits
        self._place = 0
        self._recurrent: Tensor | None = None
        self.logits: Tensor = logits[:, 0]
        self.confidence: Tensor | None = None
        self._read(tokens)

    def advance(self, tokens: Tensor) -> Tensor:
        self._place += 1
        self._read(tokens)
        return self.logits

    @torch.inference_mode()
    def _read(self, before: Tensor) -> None:
        """The next place's logits and confidence, by the token before it."""
        layout, weights = self._net.layout, self._net.weights
        state, logits = self._states[:, self._place], self._block_logits[:, self._place]
        features: Tensor | None = None
        if layout.markov:
            features = F.embedding(before, weights["markov_head.markov_w1.weight"])
            logits = logits + weights.linear("markov_head.markov_w2", self._latent(state, features)).float()
        self.logits, self.confidence = logits, None
        if layout.confidence:
            joined = (
                torch.cat((state, features), -1) if layout.confidence_reads_token and features is not None else state
            )
            self.confidence = weights.linear("confidence_head.proj", joined)[:, 0].float().sigmoid()

    def _latent(self, state: Tensor, features: Tensor) -> Tensor:
        """What the Markov head makes of the token before, ``[R, rank]``."""
        layout, weights = self._net.layout, self._net.weights
        if layout.markov == "vanilla":
            return features
        if layout.markov == "gated":
            gate = weights.linear("markov_head.gate_proj", torch.cat((state, features), -1)).sigmoid()
            return gate * features
        recurrent = torch.zeros_like(features) if self._recurrent is None else self._recurrent
        joined = torch.cat((recurrent, features, state), -1)
        gate, candidate, output = weights.linear("markov_head.joint_proj", joined).chunk(3, -1)
        self._recurrent = gate.sigmoid() * recurrent + (1 - gate.sigmoid()) * candidate.tanh()
        return output.tanh()
