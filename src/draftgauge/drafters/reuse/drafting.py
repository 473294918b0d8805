"""A reuse drafter step by step, for decoding: it processes new anchors, and drafts a chain of tokens from the last one.

Depth 0 reads the target's states; deeper ones read the drafter's own chain, as in training. Letters in shapes as
in :mod:`draftgauge.drafters.reuse.net`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from draftgauge.drafters.reuse.attention import Heads
from draftgauge.drafters.reuse.blocks import BlockHeads, Memory
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.joint import KeysValues
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import window

Tapped = Sequence[Tensor] | Tensor | None


def begin(net: ReuseNet) -> ChainState:
    return ChainState(Prefix(net.config, net.head.weight), 0, 0, (), net.head.weight.new_empty(0))


@torch.inference_mode()
def take_in(
    net: ReuseNet,
    state: ChainState,
    tokens: Tensor,
    hidden: Tensor | None = None,
    keys: Tapped = None,
    values: Tapped = None,
) -> tuple[Tensor, ChainState]:
    """Process new anchors and run depth 0 of the last one.

    Args:
        state: after the anchors so far; the chain that was drafted from them is dropped.
        tokens: ``[n]``, the token *after* each new anchor; the last of them is the last committed token.
        hidden: ``[n, S, H]`` of the new anchors, for the designs that read hidden states.
        keys, values: ``S`` tensors ``[KV, n, D]`` of the new anchors, for the designs that read them.

    Returns:
        float32 logits ``[V]`` of the first drafted token, and the state of the chain.
    """
    prefix, start, end = state.prefix, state.anchors, state.anchors + len(tokens)
    prefix.reserve(start, end)
    if net.traits.reads_kv:
        assert keys is not None, "this design reads keys"
        assert values is not None, "this design reads values"
        joined = net.cast(torch.stack(tuple(keys))[None]), net.cast(torch.stack(tuple(values))[None])
        for layer, block in enumerate(net.blocks):
            prefix.injected[layer].write(start, block.inject(*joined, start, net.rotary))
    first = start if net.traits.self_attends else end - 1  # only self-attention needs depth 0 of the other anchors
    embedded = net.embed(tokens[None, first - start :])
    entering = net.entering(embedded, None if hidden is None else hidden[None, first - start :], None)
    parts = [block.token_parts(embedded) for block in net.blocks]
    memories: list[Memory] = []

    def remember(layer: int, heads: BlockHeads) -> Memory:
        memory = prefix.memory(layer, start, end, heads.own)
        memories.append(memory.with_heads(heads.since(-1)._replace(own=None), 0))
        return memories[layer]

    positions = window(net.tables(end + 1, embedded), first + 1, end + 1)
    stream = net.depth(parts, entering, positions, remember, end - 1 - first)
    return net.logits(stream)[0, 0].float(), ChainState(prefix, end, 1, tuple(memories), stream)


@torch.inference_mode()
def step(net: ReuseNet, state: ChainState, token: Tensor | int) -> tuple[Tensor, ChainState]:
    """One more depth of a chain of one branch: ``[V]`` float32 logits after a drafted token, and the longer chain."""
    logits, state = step_many(net, state, torch.as_tensor(token, device=net.embedding.device).view(1))
    return logits[0], state


@torch.inference_mode()
def step_many(net: ReuseNet, state: ChainState, tokens: Tensor) -> tuple[Tensor, ChainState]:
    """One more depth of every branch: ``[N, V]`` logits, and the longer chains."""
    embedded = net.embed(tokens[None])
    position = state.anchors + state.depth  # of these tokens
    parts = [block.token_parts(embedded) for block in net.blocks]
    memories: list[Memory] = []

    def remember(layer: int, heads: BlockHeads) -> Memory:
        memories.append(state.memories[layer].with_heads(heads, state.depth))
        return memories[layer]

    tables = window(net.tables(position + 1, embedded), position, position + 1)
    stream = net.depth(parts, net.entering(embedded, None, state.stream), tables, remember)
    deeper = ChainState(state.prefix, state.anchors, state.depth + 1, tuple(memories), stream)
    return net.logits(stream)[0].float(), deeper


FIRST_CAPACITY = 512


class GrowingPair:
    """Keys and values ``[1, heads, capacity, D]`` by position; growing leaves views of earlier positions valid."""

    def __init__(self, heads: int, head_dim: int, like: Tensor) -> None:
        self._pair: KeysValues = (like.new_empty(1, heads, 0, head_dim), like.new_empty(1, heads, 0, head_dim))

    def reserve(self, used: int, length: int) -> None:
        capacity = self._pair[0].shape[2]
        if length > capacity:
            wanted = max(length, 2 * capacity, FIRST_CAPACITY)
            self._pair = _grown(self._pair[0], used, wanted), _grown(self._pair[1], used, wanted)

    def write(self, begin: int, pair: KeysValues) -> None:
        for buffer, new in zip(self._pair, pair, strict=True):
            buffer[:, :, begin : begin + new.shape[2]] = new

    def view(self, length: int) -> KeysValues:
        return self._pair[0][:, :, :length], self._pair[1][:, :, :length]


class Prefix:
    """The drafter's cache of the committed text: keys and values of every anchor, its own and the target's."""

    def __init__(self, config: ReuseConfig, like: Tensor) -> None:
        traits = config.traits
        self.anchors = GrowingPair(config.kv_heads, config.head_dim, like) if traits.self_attends else None
        layers = config.layers if traits.reads_kv else 0
        self.injected = [GrowingPair(config.chain_kv_heads, config.head_dim, like) for _ in range(layers)]

    def reserve(self, used: int, length: int) -> None:
        for pair in self.injected if self.anchors is None else (self.anchors, *self.injected):
            pair.reserve(used, length)

    def memory(self, layer: int, begin: int, end: int, new: Heads | None) -> Memory:
        anchors = None
        if self.anchors is not None and new is not None:
            self.anchors.write(begin, (new.keys, new.values))
            anchors = self.anchors.view(end)
        return Memory(anchors=anchors, injected=self.injected[layer].view(end) if self.injected else None)


@dataclass(frozen=True)
class ChainState:
    """The state of a chain. It is never changed: one state can be continued in several ways (a draft tree).

    Attributes:
        prefix: of the committed text.
        depth: tokens of this chain so far, the last committed one included; also the next depth.
        stream: states of the last depth ``[1, N, H]``.
    """

    prefix: Prefix
    anchors: int
    depth: int
    memories: tuple[Memory, ...]
    stream: Tensor

    def rows(self, index: Tensor) -> ChainState:
        memories = tuple(memory.rows(index) for memory in self.memories)
        return ChainState(self.prefix, self.anchors, self.depth, memories, self.stream[:, index])


def _grown(buffer: Tensor, used: int, capacity: int) -> Tensor:
    grown = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[3])
    grown[:, :, :used] = buffer[:, :, :used]
    return grown
