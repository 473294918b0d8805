"""Where the n-grams of a text occurred first: what prompt lookup copies from (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.core.errors import DraftgaugeError


class FirstOccurrences:
    """A text that grows, and the position after the first occurrence of each of its n-grams.

    A look-up takes as many dictionary accesses as there are lengths, however long the text.

    Attributes:
        text: all tokens so far.
    """

    def __init__(self, max_ngram: int, min_ngram: int = 1) -> None:
        """Set the lengths of n-grams, tried from the longest to the shortest.

        Raises:
            DraftgaugeError: if not ``1 <= min_ngram <= max_ngram``.
        """
        if not 1 <= min_ngram <= max_ngram:
            raise DraftgaugeError(
                f"n-gram lengths must satisfy 1 <= min_ngram <= max_ngram, not {min_ngram} and {max_ngram}"
            )
        self._max, self._min = max_ngram, min_ngram
        self.reset()

    def reset(self) -> None:
        """An empty text."""
        self.text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        text, after = self.text, self._after
        for token in tokens:
            # The n-grams that ended the text get a continuation only now, so the end of the text never matches itself.
            end = len(text)
            for n in range(self._min, min(self._max, end) + 1):
                after.setdefault(tuple(text[end - n :]), end)
            text.append(token)

    def continuation(self, count: int) -> list[int]:
        """Up to ``count`` tokens after the first occurrence of the longest n-gram that ends the text; none without."""
        end = len(self.text)
        for n in range(min(self._max, end), self._min - 1, -1):
            start = self._after.get(tuple(self.text[end - n :]))
            if start is not None:
                return self.text[start : start + max(count, 0)]
        return []
