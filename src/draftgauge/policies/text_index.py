"""The suffix index of a text asked at any of its positions, or of many texts, by arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.suffix import CAPACITY, MOST, ORDER

Ints = NDArray[np.int64]

BETWEEN_TEXTS = -1
"""In place of a token where a text ends and another one begins; no token follows anything across it."""


class Level(NamedTuple):
    """The n-grams of one length of a text, each with a name, a number.

    Attributes:
        base: of the keys, one more than the last name of the n-grams that are one token shorter.
        keys: sorted, ``first token * base + name of the rest``; a key's place is the n-gram's name.
        occurrences: sorted, ``name * size + position`` of the token that follows.
        group: ``[n]`` place of the first occurrence with the same name.
        streak: ``[n]`` how often in a row, up to there, the same token followed.
    """

    base: int
    keys: Ints
    occurrences: Ints
    group: Ints
    streak: Ints


class LongestMatches(NamedTuple):
    """The longest matches of ``n`` tails.

    Attributes:
        token: what followed; -1 without a match.
        order: length of the ending; 0 without a match.
        code: :func:`~draftgauge.policies.suffix.code_of` of its counts.
    """

    token: Ints
    order: Ints
    code: Ints


class TextIndex:
    """All of a text, asked as if it ended at any position."""

    def __init__(self, text: Ints, capacity: int = CAPACITY) -> None:
        """Name and sort the n-grams.

        Args:
            text: ``[L]`` prompt and output, or several texts with :data:`BETWEEN_TEXTS` between them.
            capacity: of the live index.
        """
        self.text = text
        self._size = len(text) + 1
        self._capacity = capacity
        self._levels: list[Level] = []
        names = np.zeros(len(text) + 1, np.int64)
        for order in range(1, min(ORDER, len(text)) + 1):
            base = int(names.max()) + 1
            keys, named = np.unique(text[: len(text) + 1 - order] * base + names[1:], return_inverse=True)
            names = named.reshape(-1).astype(np.int64)
            self._levels.append(Level(base, keys, *self._occurrences(names[:-1], order)))

    def _occurrences(self, names: Ints, order: int) -> tuple[Ints, Ints, Ints]:
        """The last three columns of a :class:`Level`; row ``i`` of ``names`` has the token ``order + i`` after it."""
        positions = np.flatnonzero(self.text[order:] != BETWEEN_TEXTS)
        names = names[positions]
        occurrences = np.sort(names * self._size + order + positions)
        name, follower = occurrences // self._size, self.text[occurrences % self._size]
        places = np.arange(len(names))
        new_name = np.append(True, name[1:] != name[:-1])[: len(names)]
        new_follower = new_name | np.append(True, follower[1:] != follower[:-1])[: len(names)]
        group = np.maximum.accumulate(np.where(new_name, places, 0))
        return occurrences, group, places - np.maximum.accumulate(np.where(new_follower, places, 0)) + 1

    def look_up(self, tails: Ints, ends: Ints, begins: Ints | int = 0) -> LongestMatches:
        """The longest match of each tail in the text before ``ends``.

        Args:
            tails: ``[n, ORDER]``, -1 before the first token.
            ends: ``[n]`` length of the text so far.
            begins: ``[n]`` where the text that the live index would have read begins.
        """
        count = len(tails)
        matches = LongestMatches(np.full(count, -1), np.zeros(count, np.int64), np.zeros(count, np.int64))
        rows, name = np.arange(count), np.zeros(count, np.int64)
        windowed = bool((ends - begins >= self._capacity).any())
        starts = begins + window_start(ends - begins, self._capacity)
        for order, level in enumerate(self._levels, 1):
            first = tails[rows, ORDER - order]
            wanted = first * level.base + name
            named = np.minimum(np.searchsorted(level.keys, wanted), len(level.keys) - 1)
            held = (first >= 0) & (level.keys[named] == wanted)
            rows, name = rows[held], named[held]
            if not len(level.occurrences) or not len(rows):
                break
            at = np.searchsorted(level.occurrences, name * self._size + ends[rows]) - 1
            last = level.occurrences[np.maximum(at, 0)] - name * self._size
            held = (at >= 0) & (last >= starts[rows] + order)
            rows, name, at, last = rows[held], name[held], at[held], last[held]
            oldest = level.group[at]
            if windowed:
                first_inside = np.searchsorted(level.occurrences, name * self._size + starts[rows] + order)
                oldest = np.maximum(oldest, first_inside)
            seen = at - oldest + 1
            streak = np.minimum(level.streak[at], seen)
            matches.token[rows], matches.order[rows] = self.text[last], order
            matches.code[rows] = np.minimum(streak, MOST) << 4 | np.minimum(seen, MOST)
        return matches


def window_start(length: Ints, capacity: int) -> Ints:
    """Where the text that a live index of such a capacity still holds begins, when it has read ``length`` tokens."""
    half = capacity // 2
    return np.where(length < capacity, 0, ((length - capacity) // half + 1) * half)
