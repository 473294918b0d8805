"""The state of live drafting: the committed text in growing buffers, and a chain of drafted tokens as a value."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftgauge.drafters.reuse.attention import Heads
from draftgauge.drafters.reuse.blocks import Memory
from draftgauge.drafters.reuse.config import ReuseConfig
from draftgauge.drafters.reuse.joint import KeysValues

FIRST_CAPACITY = 512


class GrowingPair:
    """Keys and values ``[1, heads, capacity, D]`` by position; what is written before stays where old views see it."""

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
    """What a drafter keeps of the committed text: keys and values of every anchor, its own and the target's."""

    def __init__(self, config: ReuseConfig, like: Tensor) -> None:
        traits = config.traits
        self.anchors = GrowingPair(config.kv_heads, config.head_dim, like) if traits.self_attends else None
        layers = config.layers if traits.reads_kv else 0
        self.injected = [GrowingPair(config.chain_kv_heads, config.head_dim, like) for _ in range(layers)]

    def reserve(self, used: int, length: int) -> None:
        for pair in self.injected if self.anchors is None else (self.anchors, *self.injected):
            pair.reserve(used, length)

    def memory(self, layer: int, begin: int, end: int, new: Heads | None) -> Memory:
        """What a layer sees of the first ``end`` anchors; ``new`` are its own heads of those from ``begin`` on."""
        anchors = None
        if self.anchors is not None and new is not None:
            self.anchors.write(begin, (new.keys, new.values))
            anchors = self.anchors.view(end)
        return Memory(anchors=anchors, injected=self.injected[layer].view(end) if self.injected else None)


@dataclass(frozen=True)
class ChainState:
    """Where drafting stands. A value: one state can be continued in several ways (a draft tree).

    Attributes:
        prefix: of the committed text.
        anchors: number of anchors.
        depth: tokens of this chain so far, the last committed one among them: the next depth.
        memories: of each layer.
        stream: states of the last depth ``[1, N, H]``.
    """

    prefix: Prefix
    anchors: int
    depth: int
    memories: tuple[Memory, ...]
    stream: Tensor

    @property
    def branches(self) -> int:
        return self.stream.shape[1]

    def rows(self, index: Tensor) -> ChainState:
        memories = tuple(memory.rows(index) for memory in self.memories)
        return ChainState(self.prefix, self.anchors, self.depth, memories, self.stream[:, index])


def _grown(buffer: Tensor, used: int, capacity: int) -> Tensor:
    grown = buffer.new_empty(*buffer.shape[:2], capacity, buffer.shape[3])
    grown[:, :, :used] = buffer[:, :, :used]
    return grown
