"""What a text has said before: the token that followed the last time its present ending occurred.

A language model repeats what the text already holds: names, phrases, whole lines. Whether a drafted token is the one
that followed at the last occurrence of the longest matched ending says much about whether the target will accept it, on
top of what the drafter's own confidence says, and it costs a few look-ups. Prompt lookup decoding (Saxena 2023) drafts
such tokens; here they judge the tokens of another drafter, and may follow them in the same draft.

With each ending goes how often it was followed, and how often in a row by the same token, up to :data:`MOST` of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ORDER = 4
"""Longest ending that is looked up, in tokens."""

HABIT = 0.85
"""How much of :attr:`SuffixIndex.habit` a token leaves in place."""

CAPACITY = 1 << 15
"""The most tokens that an index holds; on reaching it, the index forgets the first half."""

MOST = 15
"""Occurrences that are told apart; more count as this many."""

CODE_BITS = 8
_CODE = (1 << CODE_BITS) - 1
_FIRST = 1 << 4 | 1
_NO_TOKEN = -3  # which is never looked up: -1 stands before a text, -2 for what is not asked


class Match(NamedTuple):
    """What followed the longest ending that the text holds.

    Attributes:
        token: that followed last; -1 without a match.
        order: length of the ending in tokens; 0 without a match.
        streak: how often in a row, up to the last time, that token followed; at most :data:`MOST`.
        seen: how often any token did; at most :data:`MOST`.
    """

    token: int = -1
    order: int = 0
    streak: int = 0
    seen: int = 0


NO_MATCH = Match()


def code_of(streak: int, seen: int) -> int:
    """Both counts in one number below 256."""
    return min(streak, MOST) << 4 | min(seen, MOST)


_SAME = tuple(code_of((code >> 4) + 1, (code & 15) + 1) for code in range(_CODE + 1))
_OTHER = tuple(code_of(1, (code & 15) + 1) for code in range(_CODE + 1))


def _padded(tail: tuple[int, ...]) -> tuple[int, ...]:
    """The tail with tokens before it that match none."""
    return tail if len(tail) == ORDER else (-2,) * (ORDER - len(tail)) + tail


class SuffixIndex:
    """A text that grows, and for each of its n-grams up to :data:`ORDER` the token that followed it last.

    Every n-gram has one number, the token that followed last and both counts, so that the index takes a few dictionary
    accesses a token, and memory for :attr:`capacity` tokens.

    Attributes:
        tail: the last :data:`ORDER` tokens, -1 before the first.
        habit: how often the output repeated the text of late: an exponential mean of 1 for a token that was
            predicted, -1 where another one was predicted, 0 where none was.
        run: predicted tokens in a row at the end of the text.
        after: for n-grams of 1, 2, ... tokens what followed, as ``token << CODE_BITS | code_of(streak, seen)``; n-grams
            of one token are keyed by the token.
    """

    tail: tuple[int, ...]

    def __init__(self, capacity: int = CAPACITY) -> None:
        assert capacity >= 2 * ORDER
        self.capacity = capacity
        self.reset()

    def reset(self) -> None:
        """An empty text."""
        self._forget()
        self._text: list[int] = []
        self.habit = 0.0
        self.run = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Add the prompt."""
        habit, run = self.habit, self.run
        self.commit(tokens)
        self.habit, self.run = habit, run

    def separate(self) -> None:
        """What is added from here on is another text: no ending goes back beyond it."""
        self.tail = (_NO_TOKEN,) * ORDER

    def commit(self, tokens: Sequence[int]) -> None:
        """Add output tokens, noting whether they were predicted."""
        while len(self._text) + len(tokens) >= self.capacity:
            room = self.capacity - len(self._text)
            self._add(tokens[:room])
            tokens = tokens[room:]
            habit, run, kept = self.habit, self.run, self._text[self.capacity // 2 :]
            self._forget()
            self._text = []
            self._add(kept)
            self.habit, self.run = habit, run
        self._add(tokens)

    def look_up(self, tail: tuple[int, ...]) -> tuple[int, int]:
        """What followed the longest ending of ``tail`` held by the text, and its length; (-1, 0) if none is held."""
        entry, order = self.entry(*_padded(tail))
        return (entry >> CODE_BITS, order) if order else (-1, 0)

    def match(self, tail: tuple[int, ...]) -> Match:
        """:meth:`look_up` with the counts."""
        entry, order = self.entry(*_padded(tail))
        return Match(entry >> CODE_BITS, order, (entry & _CODE) >> 4, entry & 15) if order else NO_MATCH

    def entry(self, first: int, second: int, third: int, last: int) -> tuple[int, int]:
        """The number of the longest ending of four tokens that the text holds, and its length; (0, 0) without one.

        An ending that the text lacks has no longer one that it holds, so shorter ones are looked up first.
        """
        one, two, three, four = self.after
        entry = one.get(last)
        if entry is None:
            return 0, 0
        longer = two.get((third, last))
        if longer is None:
            return entry, 1
        entry = longer
        longer = three.get((second, third, last))
        if longer is None:
            return entry, 2
        entry = longer
        longer = four.get((first, second, third, last))
        return (entry, 3) if longer is None else (longer, 4)

    def continuation(self, count: int, least: int = 1) -> list[int]:
        """Up to ``count`` tokens that the text foretells one by one, while endings of ``least`` tokens match."""
        tokens: list[int] = []
        a, b, c, d = self.tail
        while len(tokens) < count:
            entry, order = self.entry(a, b, c, d)
            if order < least:
                break
            a, b, c, d = b, c, d, entry >> CODE_BITS
            tokens.append(d)
        return tokens

    def _forget(self) -> None:
        self.after: tuple[
            dict[int, int],
            dict[tuple[int, int], int],
            dict[tuple[int, int, int], int],
            dict[tuple[int, int, int, int], int],
        ] = ({}, {}, {}, {})
        self.tail = (-1,) * ORDER

    def _add(self, tokens: Sequence[int]) -> None:
        one, two, three, four = self.after
        a, b, c, d = self.tail
        habit, run = self.habit, self.run
        for token in tokens:
            new = token << CODE_BITS
            fresh = new | _FIRST
            pair, triple, all_four = (c, d), (b, c, d), (a, b, c, d)
            entry = one.get(d)
            if entry is None:
                one[d] = two[pair] = three[triple] = four[all_four] = fresh
                habit, run = HABIT * habit, 0
            else:
                predicted = entry >> CODE_BITS
                one[d] = new | (_SAME if predicted == token else _OTHER)[entry & _CODE]
                entry = two.get(pair)
                if entry is None:
                    two[pair] = three[triple] = four[all_four] = fresh
                else:
                    predicted = entry >> CODE_BITS
                    two[pair] = new | (_SAME if predicted == token else _OTHER)[entry & _CODE]
                    entry = three.get(triple)
                    if entry is None:
                        three[triple] = four[all_four] = fresh
                    else:
                        predicted = entry >> CODE_BITS
                        three[triple] = new | (_SAME if predicted == token else _OTHER)[entry & _CODE]
                        entry = four.get(all_four)
                        if entry is None:
                            four[all_four] = fresh
                        else:
                            predicted = entry >> CODE_BITS
                            four[all_four] = new | (_SAME if predicted == token else _OTHER)[entry & _CODE]
                if predicted == token:
                    habit, run = HABIT * habit + (1 - HABIT), run + 1
                else:
                    habit, run = HABIT * habit - (1 - HABIT), 0
            a, b, c, d = b, c, d, token
        self._text += tokens
        self.tail = (a, b, c, d)
        self.habit, self.run = habit, run
