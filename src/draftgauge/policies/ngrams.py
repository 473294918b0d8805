"""What followed the same words earlier in a text: n-gram matches over prompt and output, and over earlier outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LONGEST = 4  # tokens of the longest n-gram that is indexed
MOST_MATCHED = 32  # tokens up to which the length of a match is counted
CAPACITY = 1 << 15  # tokens of a text that are indexed; beyond, the older half is forgotten
_NO_TOKEN = -1  # between texts


class Match(NamedTuple):
    """The latest occurrence of the longest n-gram that ends a text.

    Attributes:
        token: the token that followed there.
        matched: tokens that match, up to ``MOST_MATCHED``.
        seen: how often the n-gram (of at most ``LONGEST`` tokens) was followed by anything.
        streak: how often in a row, up to the latest time, it was followed by ``token``.
    """

    token: int
    matched: int
    seen: int
    streak: int


class NgramIndex:
    """A growing text, and for each of its n-grams of 1 to ``LONGEST`` tokens what followed it last.

    Attributes:
        earlier: an index of other texts, whose match counts where its n-gram is longer.
    """

    def __init__(self, earlier: NgramIndex | None = None, capacity: int | None = CAPACITY) -> None:
        self.earlier = earlier
        self._capacity = capacity
        self.reset()

    def reset(self) -> None:
        self.text: list[int] = []
        self._begin = 0  # of the running text; n-grams do not reach back beyond it
        self._after: dict[tuple[int, ...], tuple[int, int, int]] = {}  # place of the follower, seen, streak

    def separate(self) -> None:
        self.text.append(_NO_TOKEN)
        self._begin = len(self.text)

    def extend(self, tokens: Sequence[int]) -> None:
        text, after = self.text, self._after
        for token in tokens:
            end = len(text)
            for n in range(1, min(LONGEST, end - self._begin) + 1):
                ngram = tuple(text[end - n :])
                place, seen, streak = after.get(ngram, (end, 0, 0))
                after[ngram] = (end, seen + 1, streak + 1 if seen == 0 or text[place] == token else 1)
            text.append(token)
            if len(text) == self._capacity:
                kept = text[len(text) // 2 :]
                self.reset()
                self.extend(kept)
                text, after = self.text, self._after

    def match(self, tail: Sequence[int]) -> Match | None:
        """The match of a text that ends in ``tail``: the indexed one, possibly with further tokens."""
        own, order = self._longest(tail)
        if self.earlier is not None and order < LONGEST:
            other, longer = self.earlier._longest(tail)
            if longer > order:
                return other
        return own

    def continuation(self, count: int, least: int = 1) -> list[int]:
        """Up to ``count`` tokens that follow the text one by one, while at least ``least`` tokens match."""
        tail, tokens = self.text[-MOST_MATCHED:], list[int]()
        while len(tokens) < count:
            match = self.match([*tail, *tokens][-MOST_MATCHED:])
            if match is None or match.matched < least:
                break
            tokens.append(match.token)
        return tokens

    def _longest(self, tail: Sequence[int]) -> tuple[Match | None, int]:
        for n in range(min(LONGEST, len(tail)), 0, -1):
            found = self._after.get(tuple(tail[-n:]))
            if found is not None:
                place, seen, streak = found
                length = n if n < LONGEST else self._length(place, tail)
                return Match(self.text[place], length, seen, streak), n
        return None, 0

    def _length(self, place: int, tail: Sequence[int]) -> int:
        text, most = self.text, min(MOST_MATCHED, len(tail), place)
        for n in range(LONGEST, most):
            if text[place - 1 - n] != tail[-1 - n]:
                return n
        return most


class FirstOccurrences:
    """A growing text, and the position after the first occurrence of each of its n-grams, as prompt lookup copies from
    (Saxena 2023; ``prompt_lookup_num_tokens`` in transformers).

    ``longest`` is that of its n-grams, which are tried from the longest to a single token.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        self.text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        text, after = self.text, self._after
        for token in tokens:
            # The n-grams that ended the text get a continuation only now, so the end of the text never matches itself.
            end = len(text)
            for n in range(1, min(self._longest, end) + 1):
                after.setdefault(tuple(text[end - n :]), end)
            text.append(token)

    def continuation(self, count: int) -> list[int]:
        """Up to ``count`` tokens after the first occurrence of the longest n-gram that ends the text; none without."""
        end = len(self.text)
        for n in range(min(self._longest, end), 0, -1):
            start = self._after.get(tuple(self.text[end - n :]))
            if start is not None:
                return self.text[start : start + max(count, 0)]
        return []
