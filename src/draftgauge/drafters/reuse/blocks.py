"""The drafter layer that all designs share: they differ in what they reuse, not in attention, SwiGLU and norms."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.reuse.attention import Attention, Heads
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.rotary import Tables, like, rotate, unrotate


class Memory(NamedTuple):
    """What a block attends to. It is never changed, only extended to a new one, so chains can fork.

    Attributes:
        anchors: keys and values of depth 0 of all anchors ``[B, KV, L, D]`` (self-attention).
        drafted: of this chain's depths 1, 2, ..., each ``[B, KV, R, D]`` (self-attention).
        injected: of the target ``[B, KV', L, D]``.
        chain: of this chain's depths 0, 1, ..., each ``[B, KV', R, D]`` (beside the injected ones).
        empty: ``[L]`` true for places of anchors and of the target that hold none; None where all do.
    """

    anchors: KeysValues | None = None
    drafted: tuple[KeysValues, ...] = ()
    injected: KeysValues | None = None
    chain: tuple[KeysValues, ...] = ()
    empty: Tensor | None = None

    def with_heads(self, heads: BlockHeads, depth: int, skipped: int = 0) -> Memory:
        """With the rows' own keys of a depth; at depth 0 the self-attention's are those of the anchors themselves.

        Nothing is drafted from the first ``skipped`` rows, so they have no chain.
        """
        memory = self
        if heads.own is not None:
            pair = heads.own.keys, heads.own.values
            memory = memory._replace(drafted=(*memory.drafted, pair)) if depth else memory._replace(anchors=pair)
        if heads.chain is not None:
            chain = heads.chain.since(skipped)
            memory = memory._replace(chain=(*memory.chain, (chain.keys, chain.values)))
        return memory

    def rows(self, index: Tensor) -> Memory:
        drafted = tuple((keys[:, :, index], values[:, :, index]) for keys, values in self.drafted)
        chain = tuple((keys[:, :, index], values[:, :, index]) for keys, values in self.chain)
        return self._replace(drafted=drafted, chain=chain)


class TokenParts(NamedTuple):
    """Projections of token embeddings for the two attentions, ``[B, n, width]`` each."""

    own: Tensor | None
    chain: Tensor | None

    def window(self, begin: int, end: int) -> TokenParts:
        return TokenParts(*(None if part is None else part[:, begin:end] for part in self))


class BlockHeads(NamedTuple):
    """Heads of the two attentions for the same rows."""

    own: Heads | None
    chain: Heads | None

    def since(self, row: int) -> BlockHeads:
        return BlockHeads(*(None if part is None else part.since(row) for part in self))


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))``, gate and up in one linear."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class GatedDelta(nn.Module):
    """``n + g * W_d (o - n)`` with ``g = sigmoid(W_g [n; o; o - n] + b_g)`` (KVShot, arXiv 2604.26412, hybrid)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(3 * hidden, hidden)
        self.delta = nn.Linear(hidden, hidden, bias=False)

    def openness(self, own: Tensor, cross: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(torch.cat((own, cross, cross - own), -1)))

    def forward(self, own: Tensor, cross: Tensor) -> Tensor:
        return own + self.openness(own, cross) * self.delta(cross - own)


class Block(nn.Module):
    """One drafter layer.

    The self-attention sees depth 0 of all anchors and its own chain. The chain attention sees the injected keys of the
    target, if any, and its own chain (see :class:`~draftgauge.drafters.reuse.config.Design`). The first
    layer reads the token; layers after it, and the first of the recurrent designs, read the state.
    """

    def __init__(self, config: ReuseConfig, layer: int) -> None:
        super().__init__()
        hidden, eps, traits = config.hidden_size, config.rms_norm_eps, config.traits
        reads_token, reads_state = layer == 0, layer > 0 or traits.reads_hidden
        self.normalises_residual = traits.reads_hidden and config.norm_before_residual
        self.token_norm = nn.RMSNorm(hidden, eps) if reads_token else None
        self.state_norm = nn.RMSNorm(hidden, eps) if reads_state else None
        self.self_attention = self.chain_attention = self.join = None
        shape = config.head_dim, reads_token, reads_state
        if traits.self_attends:
            self.self_attention = Attention(hidden, config.query_heads, config.kv_heads, *shape)
        if traits.chain_attends:
            self.chain_attention = Attention(hidden, config.chain_query_heads, config.chain_kv_heads, *shape)
        self.injection: Any = Injection(config) if traits.reads_kv else None
        if traits.gated:
            self.join = GatedDelta(hidden)
        self.mlp_norm = nn.RMSNorm(hidden, eps)
        self.mlp = SwiGLU(hidden, config.intermediate_size)

    def token_parts(self, embedded: Tensor) -> TokenParts:
        if self.token_norm is None:
            return TokenParts(None, None)
        normed = self.token_norm(embedded)
        attentions = self.self_attention, self.chain_attention
        return TokenParts(*(None if attention is None else attention.token_part(normed) for attention in attentions))

    def read(self, parts: TokenParts, stream: Tensor, tables: Tables) -> tuple[Tensor, BlockHeads]:
        """The residual ``[B, R, H]`` of a stream, and its heads at the tables' positions."""
        state = None if self.state_norm is None else self.state_norm(stream)
        own = None if self.self_attention is None else self.self_attention.heads(parts.own, state, tables)
        chain = None if self.chain_attention is None else self.chain_attention.heads(parts.chain, state, tables)
        residual = state.to(stream.dtype) if self.normalises_residual and state is not None else stream
        return residual, BlockHeads(own, chain)

    def forward(self, stream: Tensor, heads: BlockHeads, memory: Memory, causal: bool) -> Tensor:
        """The residual ``[B, R, H]`` after this layer; ``memory`` already holds the rows' own keys."""
        attended = []
        if self.self_attention is not None and heads.own is not None:
            seen = memory.anchors, memory.drafted, causal, memory.empty
            attended.append(self.self_attention(heads.own.queries, *seen))
        if self.chain_attention is not None and heads.chain is not None:
            seen = memory.injected, memory.chain, causal, memory.empty
            attended.append(self.chain_attention(heads.chain.queries, *seen))
        stream = stream + (attended[0] if self.join is None else self.join(*attended))
        return stream + self.mlp(self.mlp_norm(stream))


class Injection(nn.Module):
    """Keys and values of ``S`` target layers, as cached, into one set (KVShot, arXiv 2604.26412, "KV-only").

    - ``concat``: the heads of all layers side by side, without weights.
    - ``project``: a linear map from all layers' heads of a position to one layer's, for keys as cached and for values.
    - ``project-rope``: the same with the rotation taken off the keys before and put on after. A map that mixes rotated
      components of several layers does not commute with the rotation.
    """

    def __init__(self, config: ReuseConfig) -> None:
        super().__init__()
        self.kind = config.injection
        if self.kind != "concat":
            width = config.kv_heads * config.head_dim
            self.keys = nn.Linear(len(config.kv_layers) * width, width, bias=False)
            self.values = nn.Linear(len(config.kv_layers) * width, width, bias=False)

    @torch.no_grad()
    def select(self, slot: int) -> None:
        for linear in (self.keys, self.values):
            width = len(linear.weight)
            linear.weight.zero_()
            linear.weight[:, slot * width : (slot + 1) * width] = torch.eye(width, device=linear.weight.device)

    def forward(self, keys: Tensor, values: Tensor, tables: Tables) -> KeysValues:
        """Join the layers' keys and values as cached, ``[B, S, KV, n, D]``, into ``[B, KV or S KV, n, D]``; keys are
        rotated by the tables ``[n, D]`` of their positions before and after.
        """
        if self.kind == "concat":
            return keys.flatten(1, 2), values.flatten(1, 2)
        if self.kind == "project":
            return _project(self.keys, keys), _project(self.values, values)
        projected = _project(self.keys, unrotate(keys, like(tables, keys)))
        return rotate(projected, like(tables, projected)), _project(self.values, values)


def _project(linear: nn.Linear, heads: Tensor) -> Tensor:
    """``[B, S, KV, n, D]`` to ``[B, KV, n, D]``."""
    joined: Tensor = linear(heads.permute(0, 3, 1, 2, 4).flatten(2))
    return joined.unflatten(-1, (heads.shape[2], -1)).transpose(1, 2)
