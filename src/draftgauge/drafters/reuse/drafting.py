"""A reuse drafter token by token, for decoding: it takes in new anchors, and drafts a chain of tokens from the last.

Depth 0 reads the target's states; deeper ones read the drafter's own chain, as in training. Letters in shapes as
in :mod:`draftgauge.drafters.reuse.net`; ``C`` places of the cache of anchors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftgauge.drafters.anchors import DEEPEST, AnchorCache, Places
from draftgauge.drafters.reuse.blocks import BlockHeads, Memory
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import Tables, window


class Chain(NamedTuple):
    """A chain of drafted tokens. It is never changed: one can be continued in several ways (a draft tree).

    Attributes:
        depth: tokens so far, the last committed one included; also the next depth.
        memories: the chain's own keys and values in each block.
        stream: states of the last depth ``[1, N, H]``.
        empty: see :class:`~draftgauge.drafters.anchors.Places`.
        ahead: rotary tables of the positions after the last anchor but one, ``[DEEPEST + 1, D]``.
    """

    depth: int
    memories: tuple[Memory, ...]
    stream: Tensor
    empty: Tensor
    ahead: Tables

    def rows(self, index: Tensor) -> Chain:
        memories = tuple(memory.rows(index) for memory in self.memories)
        return self._replace(memories=memories, stream=self.stream[:, index])


def begin(net: ReuseNet) -> AnchorCache:
    """The cache: keys and values of every anchor, the network's own first, then what each block makes of those read."""
    config, traits = net.config, net.traits
    own = [config.kv_heads] if traits.self_attends else []
    injected = [config.chain_kv_heads] * (config.layers if traits.reads_kv else 0)
    return AnchorCache([*own, *injected], config.head_dim, net.head.weight, net.tables)


@torch.inference_mode()
def take_in(
    net: ReuseNet,
    cache: AnchorCache,
    tokens: Tensor,
    hidden: Tensor | None = None,
    keys: Tensor | None = None,
    values: Tensor | None = None,
) -> tuple[Tensor, Chain]:
    """Process new anchors and run depth 0 of the last one; earlier chains stay right while the cache has room.

    Args:
        tokens: ``[n]``, the token *after* each new anchor; the last of them is the last committed token.
        hidden: ``[n, S, H]`` of the new anchors, in designs that read hidden states.
        keys, values: ``[S, KV, n, D]`` of the new anchors, in designs that read them.

    Returns:
        float32 logits ``[1, V]`` of the first drafted token, and the chain.
    """
    return absorb(net, cache, cache.extend(len(tokens)), tokens, hidden, keys, values)


@torch.inference_mode()
def absorb(
    net: ReuseNet,
    cache: AnchorCache,
    places: Places,
    tokens: Tensor,
    hidden: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
) -> tuple[Tensor, Chain]:
    """:func:`take_in` where the cache has made room, in shapes that depend on the number of new anchors alone."""
    count, tables = len(tokens), places.tables
    if net.traits.reads_kv:
        assert keys is not None, "this design reads keys"
        assert values is not None, "this design reads values"
        joined = net.cast(keys[None]), net.cast(values[None])
        for layer, block in enumerate(net.blocks):
            injected = block.injection(*joined, window(tables, 0, count))
            cache.write(layer + int(net.traits.self_attends), places.at, injected)
    first = 0 if net.traits.self_attends else count - 1  # only self-attention needs depth 0 of the other anchors
    embedded = net.embed(tokens[None, first:])
    entering = net.entering(embedded, None if hidden is None else hidden[None, first:], None)
    parts = [block.token_parts(embedded) for block in net.blocks]
    memories: list[Memory] = []

    def remember(layer: int, heads: BlockHeads) -> Memory:
        if heads.own is not None:
            cache.write(0, places.at, (heads.own.keys, heads.own.values))
        memories.append(Memory().with_heads(heads.since(-1)._replace(own=None), 0))
        return _with_anchors(net, cache, layer, memories[layer], places.empty)

    stream = net.depth(parts, entering, window(tables, first + 1, count + 1), remember, count - 1 - first)
    ahead = window(tables, count, count + DEEPEST + 1)
    return net.logits(stream)[0].float(), Chain(1, tuple(memories), stream, places.empty, ahead)


@torch.inference_mode()
def step(net: ReuseNet, cache: AnchorCache, chain: Chain, tokens: Tensor) -> tuple[Tensor, Chain]:
    """One more depth of every branch, for tokens ``[N]``: float32 logits ``[N, V]``, and the longer chains."""
    embedded = net.embed(tokens[None])
    parts = [block.token_parts(embedded) for block in net.blocks]
    memories: list[Memory] = []

    def remember(layer: int, heads: BlockHeads) -> Memory:
        memories.append(chain.memories[layer].with_heads(heads, chain.depth))
        return _with_anchors(net, cache, layer, memories[layer], chain.empty)

    tables = window(chain.ahead, chain.depth, chain.depth + 1)
    stream = net.depth(parts, net.entering(embedded, None, chain.stream), tables, remember)
    longer = chain._replace(depth=chain.depth + 1, memories=tuple(memories), stream=stream)
    return net.logits(stream)[0].float(), longer


def _with_anchors(net: ReuseNet, cache: AnchorCache, layer: int, own: Memory, empty: Tensor) -> Memory:
    attends = int(net.traits.self_attends)
    anchors = cache.pairs[0] if attends else None
    injected = cache.pairs[layer + attends] if net.traits.reads_kv else None
    return own._replace(anchors=anchors, injected=injected, empty=empty)
