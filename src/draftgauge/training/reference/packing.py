"""Documents packed into windows of one length: tasks kept whole, plain text filling what is left."""

from __future__ import annotations

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

    def peek(self) -> Tokens:
        if not self.order:
            self.order = self.rng.permutation(len(self.documents)).tolist()
        return self.documents[self.order[-1]]

    def take(self) -> Tokens:
        document = self.peek()
        self.order.pop()
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
    pools = {k: _Cycle(found, rng) for k, found in fitting.items() if found}
    stream, plain = _Cycle(documents[PLAIN], rng), np.empty(0, np.uint16)
    used = dict.fromkeys(shares, 0)
    out = np.empty((windows, length), np.uint16)
    for w in range(windows):
        filled = 0
        while filled < length:
            total = sum(used.values())
            kind = max(shares, key=lambda k: shares[k] * total - used[k])
            if kind in pools and len(pools[kind].peek()) <= length - filled:
                piece = pools[kind].take()
            else:
                kind = PLAIN
                while len(plain) < slice_length:
                    plain = np.concatenate([plain, stream.take()])
                piece, plain = np.split(plain, [min(slice_length, length - filled)])
            out[w, filled : filled + len(piece)] = piece
            filled += len(piece)
            used[kind] += len(piece)
    return out
