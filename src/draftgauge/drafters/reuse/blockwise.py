"""Block-wise drafters: one bidirectional pass over ``[embed(last token), MASK, MASK, ...]`` proposes a whole block.

The block of the anchor ``t`` stands at the positions ``t + 1 .. t + b``. Its slot ``k`` predicts ``x[t + 2 + k]``, as
depth ``k`` does in a drafter that goes token by token. It attends to the target's states of ``0 .. t``, as keys and
values of each layer, and to all of itself. The input layout is that of DFlash (arXiv 2602.06036), whose drafter reads
hidden states. KVShot (arXiv 2604.26412) asks for the same with the target's keys and values.

With a mask token the network is DFlash's as published: a mask predicts the token of its own position. The block then
has one place more. Without one, the designs that read the target enter with what they read of the anchor, as EAGLE-3
does with its hidden state. Their first layer reads it beside the token or mask of every slot: it need not learn first
to attend to the newest position.

Letters in shapes as in :mod:`draftgauge.drafters.reuse.net`, and ``b`` slots of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from draftgauge.core.errors import ModelError
from draftgauge.drafters.anchors import KeysValues
from draftgauge.drafters.reuse.attention import Attention, Heads
from draftgauge.drafters.reuse.blocks import Injection, SwiGLU
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import Tables, unrotate, window
from draftgauge.models.taps import Features

Context = Sequence[KeysValues]
"""What a layer sees of the text, by position: keys and values ``[B, KV, L, D]`` from the fused hidden states, from the
target's cache, from both, or from neither."""


class Seen(NamedTuple):
    """What all blocks of a text see of it.

    Attributes:
        layers: the context of each layer.
        fused: what slots enter with, by anchor, ``[B, L, H]``: the fused hidden states, or in designs without them
            the keys and values. None in those that read neither.
    """

    layers: Sequence[Context]
    fused: Tensor | None


CHUNK_BLOCKS = 128  # blocks of a text that are run together outside of training: bounds the memory for scores


class BlockLayer(nn.Module):
    """A decoder layer whose queries are the block's and whose keys are the context's and the block's."""

    def __init__(self, config: ReuseConfig, layer: int) -> None:
        super().__init__()
        heads = config.chain_query_heads, config.chain_kv_heads, config.head_dim
        both = layer == 0 and config.enters_with_state
        self.token_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps) if both else None
        self.state_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config.hidden_size, *heads, reads_token=both, reads_state=True)
        if config.dflash:
            self.attention.normalise_heads(config.rms_norm_eps)
        self.injection = Injection(config) if config.traits.reads_kv else None
        self.mlp_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def heads(self, stream: Tensor, embedded: Tensor, tables: Tables) -> Heads:
        """Of the slots' residual and their tokens or masks, both ``[B, A b, H]``."""
        token = None if self.token_norm is None else self.attention.token_part(self.token_norm(embedded))
        return self.attention.heads(token, self.state_norm(stream), tables)

    def forward(
        self, stream: Tensor, embedded: Tensor, context: Context, tables: Tables, visible: Tensor | None, size: int
    ) -> Tensor:
        """The residual ``[B, A b, H]`` after this layer; each block sees ``visible [B, A]`` positions, None for all."""
        heads = self.heads(stream, embedded, tables)
        unseen = None
        if visible is not None and context:
            unseen = torch.arange(context[0][0].shape[2], device=stream.device) >= visible[..., None, None]
        mixed = block_attention(heads.queries, context, (heads.keys, heads.values), unseen, size)
        stream = stream + self.attention.output(mixed.transpose(1, 2).flatten(2))
        return stream + self.mlp(self.mlp_norm(stream))


def block_attention(
    queries: Tensor,
    context: Context,
    own: KeysValues,
    unseen: Tensor | None,
    size: int,
    own_unseen: Tensor | None = None,
) -> Tensor:
    """One softmax over the part of the context that the slots of a block see and those of the block itself.

    Args:
        queries: ``[B, Q, A b, D]``.
        context: keys and values ``[B, KV, L, D]`` each, or ``[1, KV, L, D]``.
        own: keys and values ``[B, KV, A b, D]`` of the blocks.
        unseen: ``[B, A, b, L]``, or ``[B, A, 1, L]``, true where a slot does not see a position of the context.
        size: slots of a block, ``b``.
        own_unseen: ``[b, b]`` likewise of the block itself.
    """
    texts, heads, rows, dim = queries.shape
    key_heads, blocks = own[0].shape[1], rows // size
    # [B, KV, A, group, b, D]: the queries of a block that share its keys
    grouped = (queries * dim**-0.5).unflatten(1, (key_heads, -1)).unflatten(3, (blocks, size)).transpose(2, 3)
    grouped = grouped.contiguous()
    scores = []
    for keys, _ in context:
        far = torch.matmul(grouped.flatten(2, 4), keys.to(queries.dtype).mT).view(*grouped.shape[:5], -1)
        scores.append(far if unseen is None else far.masked_fill(unseen[:, None, :, None], float("-inf")))
    near_keys, near_values = (part.unflatten(2, (blocks, size)) for part in own)
    near = torch.matmul(grouped.flatten(3, 4), near_keys.mT).view(*grouped.shape[:5], -1)
    scores.append(near if own_unseen is None else near.masked_fill(own_unseen, float("-inf")))
    weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(queries.dtype)
    *far_weights, near_weights = weights.split([each.shape[-1] for each in scores], -1)
    mixed = torch.matmul(near_weights.flatten(3, 4), near_values)
    for part, (_, values) in zip(far_weights, context, strict=True):
        mixed = mixed + torch.matmul(part.flatten(2, 4), values.to(queries.dtype)).view_as(mixed)
    return mixed.unflatten(3, (-1, size)).transpose(2, 3).reshape(texts, heads, rows, dim)


class BlockNet(ReuseNet):
    """A block-wise drafter of any design but ``cross``.

    Attributes:
        mask: ``[1, H]``, the learned input of every slot but the first; None where a token's embedding is.
        markov: maps the embedding of the token before a slot to a bias of its logits; None where the configuration has
            no such head.
        confidence: maps a slot's normalised state to the logit of its chance of acceptance; None likewise.
    """

    def __init__(
        self, config: ReuseConfig, embedding: Tensor, rotary: nn.Module, draft_tokens: Tensor | None = None
    ) -> None:
        super().__init__(config, embedding, rotary, draft_tokens)
        hidden = config.hidden_size
        self.layers: Sequence[BlockLayer] = nn.ModuleList(BlockLayer(config, n) for n in range(config.layers))  # type: ignore[assignment]
        self.context_norm = (
            nn.RMSNorm(hidden, config.rms_norm_eps) if config.hidden_layers or config.kv_layers else None
        )
        cached = 2 * len(config.kv_layers) * config.kv_heads * config.head_dim
        self.fuse_cached = nn.Linear(cached, hidden, bias=False) if cached and not config.hidden_layers else None
        self.mask = None if config.dflash else nn.Parameter(torch.empty(1, hidden))
        self.markov = self.confidence = None
        if config.markov_rank:
            down, up = nn.Linear(hidden, config.markov_rank, bias=False), nn.Linear(config.markov_rank, config.logits)
            self.markov = nn.Sequential(down, up)
        if config.confidence_head:
            self.confidence = nn.Linear(hidden, 1)

    @property
    def places(self) -> int:
        return int(self.config.dflash) + self.config.block

    def logits(self, states: Tensor, before: Tensor | None = None) -> Tensor:
        output = super().logits(states)
        return output if self.markov is None or before is None else output + self.markov(self.embed(before))

    def confidence_logits(self, states: Tensor) -> Tensor:
        assert self.confidence is not None
        output: Tensor = self.confidence(self.norm(states))
        return output[..., 0]

    def confidences(self, states: Tensor) -> Tensor | None:
        """``[...]`` chances that the tokens of slots are accepted, of states ``[..., H]``; None without that head."""
        return None if self.confidence is None else self.confidence_logits(states).float().sigmoid()

    def contexts(
        self, hidden: Tensor | None, keys: Tensor | None, values: Tensor | None, tables: Tables | None = None
    ) -> Seen:
        """What the layers see of ``n`` positions of the text.

        Args:
            hidden: ``[B, n, S, H]``, for the designs that read hidden states.
            keys, values: ``[B, S, KV, n, D]``, for the designs that read them.
            tables: rotary tables ``[n, D]`` of the positions; None for the first ones.
        """
        fused = None
        length = keys.shape[3] if keys is not None else 0 if hidden is None else hidden.shape[1]
        tables = tables or window(self.tables(length, self.head.weight), 0, length)
        if self.traits.reads_hidden:
            assert hidden is not None, "this design reads hidden states"
            assert self.context_norm is not None
            fused = self.context_norm(self.fuse_hidden(hidden))
        if self.traits.reads_kv:
            assert keys is not None, "this design reads keys"
            assert values is not None, "this design reads values"
            keys, values = self.cast(keys), self.cast(values)
            if self.fuse_cached is not None:
                assert self.context_norm is not None
                bare = unrotate(keys, tables)
                cached = torch.stack((bare, values), 1).permute(0, 4, 1, 2, 3, 5).flatten(2)  # [B, n, 2 S KV D]
                fused = self.context_norm(self.fuse_cached(cached))
        contexts: list[Context] = []
        for layer in self.layers:
            seen: list[KeysValues] = []
            if self.traits.reads_hidden:
                assert fused is not None
                seen.append(layer.attention.keys_values(fused, tables))
            if layer.injection is not None:
                seen.append(layer.injection(keys, values, tables))
            contexts.append(seen)
        return Seen(contexts, fused)

    def run(
        self, first: Tensor, anchors: Tensor, seen: Seen, visible: Tensor | None, tables: Tables | None = None
    ) -> Tensor:
        """The states ``[B, A, b, H]`` of blocks.

        Args:
            first: ``[B, A]`` the token after each anchor.
            anchors: ``[B, A]`` where their states stand in ``seen``, on any device.
            seen: see :meth:`contexts`.
            visible: ``[B, A]`` on the device of the weights; None if every block sees all of the context.
            tables: rotary tables ``[B, 1, A b, D]`` of the slots; None where places are positions.
        """
        before = int(self.config.dflash)  # DFlash's first place, the token's own, predicts nothing
        size = self.places
        embedded = self.embed(first)[:, :, None]
        token = self.config.mask_token
        mask = self.mask if token is None else self.embed(first.new_full((1,), token))
        assert mask is not None
        embedded = torch.cat((embedded, mask.to(embedded.dtype).expand(*first.shape, size - 1, -1)), 2).flatten(1, 2)
        stream = embedded
        if self.config.enters_with_state:
            assert seen.fused is not None
            places = anchors.to(seen.fused.device).clamp(min=0)[..., None].expand(-1, -1, stream.shape[-1])
            stream = seen.fused.gather(1, places).repeat_interleave(size, 1)
        if tables is None:
            positions = (anchors[..., None] + 1 + torch.arange(size, device=anchors.device)).flatten(1)  # [B, A b]
            cos, sin = self.tables(int(positions.max()) + 1, stream)
            positions = positions.to(cos.device)
            tables = cos[positions][:, None], sin[positions][:, None]
        for layer, context in zip(self.layers, seen.layers, strict=True):
            stream = layer(stream, embedded, context, tables, visible, size)
        return stream.unflatten(1, (-1, size))[:, :, before:]

    def _unroll(self, tokens: Tensor, features: Features, depths: int, first: int, anchors: int) -> list[Tensor]:
        """The first ``depths`` slots of the block of every anchor."""
        if depths > self.config.block:
            raise ModelError(f"a block of {self.config.block} tokens has no draft of {depths}: ask for fewer")
        chunks = torch.arange(first, anchors).expand(len(tokens), -1).split(CHUNK_BLOCKS, 1)
        seen = self.contexts(features.hidden, features.keys, features.values)
        parts = [_run_blocks(self, tokens, seen, part)[:, :, :depths] for part in chunks]
        return list(torch.cat(parts, 1).unbind(2))


def block_states(net: BlockNet, tokens: Tensor, features: Features, anchors: Tensor) -> Tensor:
    """The states ``[B, A, b, H]`` of the blocks of anchors ``[B, A]`` in texts ``[B, T]``, packed under one mask.

    No block sees past its anchor but itself. An anchor of -1 is padding: its block sees no context.
    """
    return _run_blocks(net, tokens, net.contexts(features.hidden, features.keys, features.values), anchors)


def _run_blocks(net: BlockNet, tokens: Tensor, seen: Seen, anchors: Tensor) -> Tensor:
    places = anchors.to(tokens.device)
    return net.run(tokens.gather(1, (places + 1).clamp(max=tokens.shape[1] - 1)), anchors, seen, places + 1)
