"""Documents packed into windows of one length: tasks kept whole, plain text filling what is left."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.uint16]
PLAIN = "text"


class _Cycle:
    """Documents in shuffled order, shuffled anew after each pass."""

    def __init__(self, documents: Sequence[Tokens], rng: np.random.Generator) -> None:
        self.documents, self.rng = documents, rng
        self.order: list[int] = []

    def take(self, room: int, ahead: int = 16) -> Tokens | None:
        """The first of the next ``ahead`` documents that fits the room; None if none does."""
        if len(self.order) < ahead:
            self.order = self.rng.permutation(len(self.documents)).tolist() + self.order
        for at in range(len(self.order) - 1, max(-1, len(self.order) - 1 - ahead), -1):
            if len(self.documents[self.order[at]]) <= room:
                return self.documents[self.order.pop(at)]
        return None

    def next(self) -> Tokens:
        """The next document, however long."""
        document = self.take(sys.maxsize)
        assert document is not None
        return document


def pack(
    documents: Mapping[str, Sequence[Tokens]],
    shares: Mapping[str, float],
    windows: int,
    length: int,
    seed: int,
    slice_length: int = 320,
) -> Tokens:
    """Windows ``[windows, length]`` that mix the kinds of documents in the given shares of tokens.

    Documents of every kind but ``"text"`` are placed whole, and only where they fit; plain text is one stream, cut
    into slices, that fills the rest. A kind none of whose documents fits a window is left out.

    Args:
        documents: token arrays by kind; ``"text"`` must be among them.
        shares: wanted share of all tokens by kind, summing to 1.
        windows: how many windows to make.
        length: tokens a window.
        seed: of the order of documents.
        slice_length: the longest run of plain text placed at once.
    """
    rng = np.random.default_rng(seed)
    fitting = {k: [d for d in documents[k] if len(d) <= length] for k in shares if k != PLAIN}
    pools = {k: _Cycle(kept, rng) for k, kept in fitting.items() if kept}
    stream, plain = _Cycle(documents[PLAIN], rng), np.empty(0, np.uint16)
    used = dict.fromkeys(shares, 0)
    out = np.empty((windows, length), np.uint16)
    for w in range(windows):
        filled = 0
        while filled < length:
            kind, piece = _next_document(pools, shares, used, length - filled)
            if piece is None:
                while len(plain) < slice_length:
                    plain = np.concatenate([plain, stream.next()])
                piece, plain = np.split(plain, [min(slice_length, length - filled)])
            out[w, filled : filled + len(piece)] = piece
            filled += len(piece)
            used[kind] += len(piece)
    return out


def _next_document(
    pools: Mapping[str, _Cycle], shares: Mapping[str, float], used: Mapping[str, int], room: int
) -> tuple[str, Tokens | None]:
    """A document of the kind that lacks most, of those that have one for the room; else plain text and None."""
    total = sum(used.values())
    for kind in sorted(shares, key=lambda k: used[k] - shares[k] * total):
        if kind == PLAIN:
            break
        if kind in pools and (document := pools[kind].take(room)) is not None:
            return kind, document
    return PLAIN, None
