"""What a text has said before: the token that followed the last time its present ending occurred.

A language model repeats what the text already holds: names, phrases, whole lines. Whether a drafted token is the one
    that
followed at the last occurrence of the longest known ending says much about whether the target will accept it, on top of
what the drafter's own confidence says, and it costs a few look-ups. Prompt lookup decoding (Saxena 2023) drafts such
tokens; here they judge the tokens of another drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDER = 4
"""Longest ending that is looked up, in tokens."""

HABIT = 0.85
"""How much of :attr:`SuffixIndex.habit` a token leaves in place."""

Ints = NDArray[np.int64]


class SuffixIndex:
    """A text that grows, and for each of its n-grams up to :data:`ORDER` the token that followed it last.

    Attributes:
        tail: the last :data:`ORDER` tokens, fewer at the start.
        habit: how often the output of late did what the text had said before: an exponential mean of 1 for a token
            that was foretold, -1 for one foretold otherwise, 0 where nothing was.
        run: foretold tokens just before the end of the text, in a row.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """An empty text."""
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in range(ORDER)]
        self.tail: tuple[int, ...] = ()
        self.habit = 0.0
        self.run = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Add the prompt."""
        for token in tokens:
            self._add(token)

    def commit(self, tokens: Sequence[int]) -> None:
        """Add output tokens, noting whether they were foretold."""
        for token in tokens:
            foretold, order = self.look_up(self.tail)
            hit = 0 if not order else 1 if foretold == token else -1
            self.habit = HABIT * self.habit + (1 - HABIT) * hit
            self.run = self.run + 1 if hit > 0 else 0
            self._add(token)

    def look_up(self, tail: tuple[int, ...]) -> tuple[int, int]:
        """The token that followed the longest known ending of ``tail``, and that ending's length; (-1, 0) if none is
        known.
        """
        after = self._after
        for order in range(len(tail), 0, -1):
            token = after[order - 1].get(tail[-order:])
            if token is not None:
                return token, order
        return -1, 0

    def _add(self, token: int) -> None:
        tail = self.tail
        for order in range(1, len(tail) + 1):
            self._after[order - 1][tail[-order:]] = token
        self.tail = (*tail[1 - ORDER :], token) if len(tail) == ORDER else (*tail, token)


class SuffixColumns(NamedTuple):
    """The same for all positions of a trace and all drafts from them at once.

    Attributes:
        agreement: ``[P, G]`` for each drafted token: ``n`` if it is what followed the longest known ending, of ``n``
            tokens, of the text and draft before it; ``-n`` if something else followed; 0 if no ending was known.
        known: ``[P, G + 1]`` length of the longest known ending after ``j`` drafted tokens, column ``j``.
        habit, run: ``[P]`` as of :class:`SuffixIndex`, before the position's own token.
    """

    agreement: NDArray[np.int8]
    known: NDArray[np.int8]
    habit: NDArray[np.float64]
    run: Ints


def suffix_columns(
    token: NDArray[np.int32], offsets: Ints, prompt_tokens: Sequence[Sequence[int]], draft_token: NDArray[np.int32]
) -> SuffixColumns:
    """Compute :class:`SuffixColumns`.

    Args:
        token: ``[P]`` output tokens of all prompts, one after the other.
        offsets: ``[prompts + 1]`` first row of each prompt, then ``P``.
        prompt_tokens: of each prompt.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
    """
    parts = []
    for prompt, (first, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        parts.append(
            _of_prompt(
                np.asarray(prompt_tokens[prompt], np.int64), token[first:end].astype(np.int64), draft_token[first:end]
            )
        )
    return SuffixColumns(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _of_prompt(prompt: Ints, output: Ints, drafts: NDArray[np.int32]) -> SuffixColumns:
    """All rows of one prompt."""
    text = np.concatenate([prompt, output])
    begin, (rows, gamma) = len(prompt), drafts.shape
    ends = begin + np.arange(rows)  # length of the text that each row knows
    # The ending before draft j + 1 of a row: the last ORDER tokens of its text and its first j drafted tokens; -1 past
    # the start.
    padded = np.concatenate([np.full(ORDER, -1), text])
    tails = np.concatenate(
        [padded[ends[:, None] + np.arange(ORDER)], drafts.astype(np.int64)], axis=1
    )  # [rows, ORDER + G]
    foretold = np.full((rows, gamma + 1), -1, np.int64)
    known = np.zeros((rows, gamma + 1), np.int8)
    # An n-gram gets a name, a number, from its first token and the name of the rest; -1 where the text does not hold
    # it.
    names, asked = np.zeros(len(text) + 1, np.int64), np.zeros((rows, gamma + 1), np.int64)
    for order in range(1, min(ORDER, len(text)) + 1):  # longer endings overwrite shorter ones
        names, asked = _longer(
            text[: len(text) + 1 - order], names, tails[:, ORDER - order : ORDER - order + gamma + 1], asked
        )
        place = _last_place(names[:-1], asked, ends[:, None], order)
        found = place >= 0
        foretold[found] = text[place[found]]
        known[found] = order
    drafted = drafts >= 0
    agreement = np.where(foretold[:, :-1] == drafts, known[:, :-1], -known[:, :-1])
    habit, run = _habits(foretold[:, 0] == output, known[:, 0])
    return SuffixColumns(np.where(drafted, agreement, 0).astype(np.int8), known, habit, run)


def _longer(first: Ints, names: Ints, asked_first: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Names of n-grams that are one token longer to the left than ``names`` and ``asked``: those of the text, and those
    asked for.
    """
    base = int(names.max()) + 1
    keys, longer = np.unique(first * base + names[1:], return_inverse=True)
    wanted = np.where((asked_first < 0) | (asked < 0), -1, asked_first * base + asked)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return longer.astype(np.int64), np.where(keys[at] == wanted, at, -1)


def _last_place(names: Ints, asked: Ints, ends: Ints, order: int) -> Ints:
    """For each asked n-gram the last place in the text, before ``ends``, that follows the same n-gram; -1 if there is
    none.

    Args:
        names: ``[L - order]``; row ``i`` names the n-gram before the token at place ``order + i``.
        asked: names, of any shape.
        ends: only places before it count; broadcast against ``asked``.
        order: of the n-grams.
    """
    if not len(names):
        return np.full(asked.shape, -1, np.int64)
    size = len(names) + order  # one more than the last place
    keys = np.sort(names * size + np.arange(order, size))  # increasing places within each n-gram
    at = np.searchsorted(keys, asked * size + ends) - 1
    place = keys[np.maximum(at, 0)] - asked * size
    return np.where((asked >= 0) & (at >= 0) & (place >= 0), place, -1)


def _habits(right: NDArray[np.bool_], known: NDArray[np.int8]) -> tuple[NDArray[np.float64], Ints]:
    """:attr:`SuffixIndex.habit` and ``run`` before each output token, ``[rows]`` each."""
    habits, runs = np.empty(len(right)), np.empty(len(right), np.int64)
    habit, run = 0.0, 0
    for row, hit in enumerate(np.where(known == 0, 0, np.where(right, 1, -1)).tolist()):
        habits[row], runs[row] = habit, run
        habit = HABIT * habit + (1 - HABIT) * hit
        run = run + 1 if hit > 0 else 0
    return habits, runs
