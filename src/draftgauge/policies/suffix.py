"""What a text has said before: the token that followed the last time its present ending occurred.

A language model repeats what the text already holds: names, phrases, whole lines. Whether a drafted token is the one
that followed at the last occurrence of the longest matched ending says much about whether the target will accept it, on
top of what the drafter's own confidence says, and it costs a few look-ups. Prompt lookup decoding (Saxena 2023) drafts
such tokens; here they judge the tokens of another drafter.
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
        habit: how often the output repeated the text of late: an exponential mean of 1 for a token that was
            predicted, -1 where another one was predicted, 0 where none was.
        run: predicted tokens in a row at the end of the text.
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
        """Add output tokens, noting whether they were predicted."""
        for token in tokens:
            predicted, order = self.look_up(self.tail)
            hit = 0 if not order else 1 if predicted == token else -1
            self.habit = HABIT * self.habit + (1 - HABIT) * hit
            self.run = self.run + 1 if hit > 0 else 0
            self._add(token)

    def look_up(self, tail: tuple[int, ...]) -> tuple[int, int]:
        """What followed the longest ending of ``tail`` that the text holds, and that ending's length; (-1, 0) without
        one.
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
        agreement: ``[P, G]`` for each drafted token: ``n`` if it is what followed the longest matched ending, of ``n``
            tokens, of the text and draft before it; ``-n`` if something else followed; 0 if no ending matched.
        order: ``[P, G + 1]`` length of the longest matched ending after ``j`` drafted tokens, column ``j``.
        habit, run: ``[P]`` as of :class:`SuffixIndex`, before the position's own token.
    """

    agreement: NDArray[np.int8]
    order: NDArray[np.int8]
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
    ends = begin + np.arange(rows)  # length of the text before each row
    # The ending before draft j + 1 of a row: the last ORDER tokens of its text and its first j drafted tokens; -1 past
    # the start.
    padded = np.concatenate([np.full(ORDER, -1), text])
    tails = np.concatenate(
        [padded[ends[:, None] + np.arange(ORDER)], drafts.astype(np.int64)], axis=1
    )  # [rows, ORDER + G]
    predicted = np.full((rows, gamma + 1), -1, np.int64)
    matched = np.zeros((rows, gamma + 1), np.int8)
    # An n-gram gets a name, a number, from its first token and the name of the rest; -1 where the text does not hold
    # it.
    names, asked = np.zeros(len(text) + 1, np.int64), np.zeros((rows, gamma + 1), np.int64)
    for order in range(1, min(ORDER, len(text)) + 1):  # longer endings overwrite shorter ones
        names, asked = _longer(
            text[: len(text) + 1 - order], names, tails[:, ORDER - order : ORDER - order + gamma + 1], asked
        )
        position = _last_position(names[:-1], asked, ends[:, None], order)
        held = position >= 0
        predicted[held] = text[position[held]]
        matched[held] = order
    drafted = drafts >= 0
    agreement = np.where(predicted[:, :-1] == drafts, matched[:, :-1], -matched[:, :-1])
    habit, run = _habits(predicted[:, 0] == output, matched[:, 0])
    return SuffixColumns(np.where(drafted, agreement, 0).astype(np.int8), matched, habit, run)


def _longer(first: Ints, names: Ints, asked_first: Ints, asked: Ints) -> tuple[Ints, Ints]:
    """Names of n-grams that are one token longer to the left than ``names`` and ``asked``: those of the text, and those
    asked for.
    """
    base = int(names.max()) + 1
    keys, longer = np.unique(first * base + names[1:], return_inverse=True)
    wanted = np.where((asked_first < 0) | (asked < 0), -1, asked_first * base + asked)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return longer.astype(np.int64), np.where(keys[at] == wanted, at, -1)


def _last_position(names: Ints, asked: Ints, ends: Ints, order: int) -> Ints:
    """For each asked n-gram the last position in the text, before ``ends``, that follows the same n-gram; -1 if there
    is none.

    Args:
        names: ``[L - order]``; row ``i`` names the n-gram before the token at position ``order + i``.
        asked: names, of any shape.
        ends: only positions before it count; broadcast against ``asked``.
        order: of the n-grams.
    """
    if not len(names):
        return np.full(asked.shape, -1, np.int64)
    size = len(names) + order  # one more than the last position
    keys = np.sort(names * size + np.arange(order, size))  # increasing positions within each n-gram
    at = np.searchsorted(keys, asked * size + ends) - 1
    position = keys[np.maximum(at, 0)] - asked * size
    return np.where((asked >= 0) & (at >= 0) & (position >= 0), position, -1)


def _habits(right: NDArray[np.bool_], order: NDArray[np.int8]) -> tuple[NDArray[np.float64], Ints]:
    """:attr:`SuffixIndex.habit` and ``run`` before each output token, ``[rows]`` each."""
    habits, runs = np.empty(len(right)), np.empty(len(right), np.int64)
    habit, run = 0.0, 0
    for row, hit in enumerate(np.where(order == 0, 0, np.where(right, 1, -1)).tolist()):
        habits[row], runs[row] = habit, run
        habit = HABIT * habit + (1 - HABIT) * hit
        run = run + 1 if hit > 0 else 0
    return habits, runs
