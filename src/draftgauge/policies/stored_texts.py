"""Texts of earlier requests in one index, which a policy may ask beside the text of the running one.

Retrieval from a datastore (REST, He et al. 2023; SuffixDecoding, Oliaro et al. 2024): what another output has said
after the same words. An ending is looked up in the request's own text first, and in the stored ones where that matches
fewer than :data:`~draftgauge.policies.suffix.ORDER` tokens; the stored match counts where it is the longer one. While a
request runs the stored texts stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.suffix import ORDER, SuffixIndex
from draftgauge.policies.text_index import BETWEEN_TEXTS, TextIndex

Ints = NDArray[np.int64]


class StoredTexts:
    """Texts that do not change, none going on into the next; later ones count before earlier ones.

    Attributes:
        texts: tokens of each, the oldest first.
        look_up_seconds: what one look-up takes.
    """

    def __init__(self, texts: Sequence[Sequence[int]], look_up_seconds: float = 0.0) -> None:
        self.texts = [np.asarray(text, np.int64) for text in texts]
        self.look_up_seconds = look_up_seconds

    @property
    def tokens(self) -> int:
        """How many there are, of all texts."""
        return sum(map(len, self.texts))

    @cached_property
    def index(self) -> SuffixIndex:
        """To look up one ending at a time."""
        index = SuffixIndex(capacity=self.tokens + 2 * ORDER)
        for text in self.texts:
            index.separate()
            index.read(text.tolist())
        return index

    @cached_property
    def columns(self) -> TextIndex:
        """To look up many."""
        between = np.full(1, BETWEEN_TEXTS)
        parts = [part for text in self.texts for part in (text, between)]
        return TextIndex(np.concatenate(parts) if parts else np.zeros(0, np.int64), capacity=2**62)


class BackedIndex(SuffixIndex):
    """The index of a text, with stored ones behind it."""

    def __init__(self, stored: StoredTexts) -> None:
        super().__init__()
        self._stored = stored.index.entry

    def entry(self, first: int, second: int, third: int, last: int) -> tuple[int, int]:
        """The longer one of the two matches, the text's own where they are equally long."""
        own, order = super().entry(first, second, third, last)
        if order == ORDER:
            return own, order
        stored, longer = self._stored(first, second, third, last)
        return (stored, longer) if longer > order else (own, order)
