"""What a drafter that reads its target keeps of the committed text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from draftgauge.drafters.reuse.rotary import Tables, window
from draftgauge.models.base import grown, room_for

KeysValues = tuple[Tensor, Tensor]
FIRST_CAPACITY = 512
DEEPEST = 64  # tokens of a draft, at most


class Places(NamedTuple):
    """Where new anchors go.

    Attributes:
        at: ``[n]`` their positions.
        empty: ``[C]`` true for the places of the cache that hold no anchor then.
        tables: rotary tables ``[n + DEEPEST + 1, D]`` of their positions and of those that a draft can reach.
    """

    at: Tensor
    empty: Tensor
    tables: Tables


class AnchorCache:
    """Keys and values of all anchors by position, in pairs of buffers ``[1, heads, C, D]`` that grow together.

    All is read at full capacity, behind a mask: shapes then do not depend on the text. Places that were never written
    are zero, as masked ones must be numbers.
    """

    def __init__(
        self,
        heads: Sequence[int],
        head_dim: int,
        like: Tensor,
        tables: Callable[[int, Tensor], Tables],
        spare: int = 0,
    ) -> None:
        """As many pairs as there are numbers of heads, and the rotary tables of at least so many positions.

        ``spare`` places after the last anchor are there too, for what is written over by the next ones.
        """
        self._tables, self._like, self._spare = tables, like, spare
        self._none = [(like.new_empty(1, count, 0, head_dim), like.new_empty(1, count, 0, head_dim)) for count in heads]
        self.pairs: list[KeysValues] = self._none
        self.device = like.device
        self.capacity = 0
        self.length = 0

    def restart(self) -> None:
        """Hold no anchor; on a GPU the buffers stay where recordings read them."""
        self.length = 0
        if self.device.type == "cpu":
            self.pairs, self.capacity = self._none, 0
        for buffer in chain.from_iterable(self.pairs):
            buffer.zero_()

    def extend(self, count: int) -> Places:
        """Make room for the next anchors, which have to be written then."""
        begin, self.length = self.length, self.length + count
        if self.length + self._spare > self.capacity:
            self.capacity = room_for(self.length + self._spare, self.capacity, FIRST_CAPACITY)
            self.pairs = [(self._grown(keys), self._grown(values)) for keys, values in self.pairs]
        columns = torch.arange(self.capacity, device=self.device)
        end = self.length + DEEPEST + 1
        return Places(
            columns[begin : self.length], columns >= self.length, window(self._tables(end, self._like), begin, end)
        )

    def write(self, number: int, at: Tensor, pair: KeysValues) -> None:
        """One pair's ``[1, heads, n, D]`` at positions ``[n]``."""
        for buffer, new in zip(self.pairs[number], pair, strict=True):
            buffer.index_copy_(2, at, new.to(buffer.dtype))  # another one under autocast

    def view(self, number: int, length: int) -> KeysValues:
        keys, values = self.pairs[number]
        return keys[:, :, :length], values[:, :, :length]

    def _grown(self, buffer: Tensor) -> Tensor:
        return grown(buffer, *buffer.shape[:2], self.capacity, buffer.shape[3])
