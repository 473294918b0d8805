"""The suffix index at every position of a trace at once: what :mod:`draftgauge.policies.suffix` says, by arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.base import TextView
from draftgauge.policies.suffix import CAPACITY, CODE_BITS, HABIT, MOST, ORDER

Ints = NDArray[np.int64]

_CELLS, _COLUMNS = "continuation cells", "suffix columns"


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


class Found(NamedTuple):
    """Matches ``[n]``.

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
            text: ``[L]`` prompt and output.
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
        occurrences = np.sort(names * self._size + np.arange(order, order + len(names)))
        name, follower = occurrences // self._size, self.text[occurrences % self._size]
        places = np.arange(len(names))
        new_name = np.append(True, name[1:] != name[:-1])[: len(names)]
        new_follower = new_name | np.append(True, follower[1:] != follower[:-1])[: len(names)]
        group = np.maximum.accumulate(np.where(new_name, places, 0))
        return occurrences, group, places - np.maximum.accumulate(np.where(new_follower, places, 0)) + 1

    def look_up(self, tails: Ints, ends: Ints, begins: Ints | int = 0) -> Found:
        """The longest match of each tail in the text before ``ends``.

        Args:
            tails: ``[n, ORDER]``, -1 before the first token.
            ends: ``[n]`` length of the text that is known.
            begins: ``[n]`` where the text that the live index would have read begins.
        """
        count = len(tails)
        found = Found(np.full(count, -1), np.zeros(count, np.int64), np.zeros(count, np.int64))
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
                known = np.searchsorted(level.occurrences, name * self._size + starts[rows] + order)
                oldest = np.maximum(oldest, known)
            seen = at - oldest + 1
            streak = np.minimum(level.streak[at], seen)
            found.token[rows], found.order[rows] = self.text[last], order
            found.code[rows] = np.minimum(streak, MOST) << 4 | np.minimum(seen, MOST)
        return found


def window_start(length: Ints, capacity: int) -> Ints:
    """Where the text that a live index of such a capacity still holds begins, when it has read ``length`` tokens."""
    half = capacity // 2
    return np.where(length < capacity, 0, ((length - capacity) // half + 1) * half)


class SuffixColumns(NamedTuple):
    """The index for all positions of a trace and all drafts from them at once.

    Attributes:
        agreement: ``[P, G]`` for each drafted token: ``n`` if it is what followed the longest matched ending, of ``n``
            tokens, of the text and draft before it; ``-n`` if something else followed; 0 if no ending matched.
        order: ``[P, G + 1]`` length of the longest matched ending after ``j`` drafted tokens, column ``j``.
        habit, run: ``[P]`` as of :class:`~draftgauge.policies.suffix.SuffixIndex`, before the position's own token.
    """

    agreement: NDArray[np.int8]
    order: NDArray[np.int8]
    habit: NDArray[np.float64]
    run: Ints


def suffix_of(view: TextView) -> SuffixColumns:
    """:func:`suffix_columns` of a trace, from what was derived before where it was."""
    if _COLUMNS not in view.derived:
        view.derived[_COLUMNS] = suffix_columns(view.token, view.offsets, view.prompt_tokens, view.draft_token)
    columns: SuffixColumns = view.derived[_COLUMNS]
    return columns


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
    texts = texts_of(token, offsets, prompt_tokens)
    rows, gamma = draft_token.shape
    windows = np.lib.stride_tricks.sliding_window_view(texts.tails(draft_token), ORDER, axis=1)  # [P, G + 1, ORDER]
    found = texts.look_up(windows.reshape(-1, ORDER), np.repeat(np.arange(rows), gamma + 1))
    predicted, matched = found.token.reshape(rows, gamma + 1), found.order.astype(np.int8).reshape(rows, gamma + 1)
    agreement = np.where(predicted[:, :-1] == draft_token, matched[:, :-1], -matched[:, :-1])
    hits = np.where(matched[:, 0] == 0, 0, np.where(predicted[:, 0] == token, 1, -1))
    parts = [_habits(part) for part in np.split(hits, offsets[1:-1])]
    habit, run = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return SuffixColumns(np.where(draft_token >= 0, agreement, 0).astype(np.int8), matched, habit, run)


@dataclass(frozen=True)
class Texts:
    """Prompt and output of all prompts of a trace, one after the other, in one index.

    The tokens of each prompt are shifted, so that no n-gram of one text is one of another.

    Attributes:
        index: of all of them.
        begins: ``[P]`` where the text of each row begins.
        ends: ``[P]`` where the text that is known at each row ends.
        shifts: ``[P]`` what is added to the row's tokens.
        size: shifts are apart by so much, more than any token of a text.
    """

    index: TextIndex
    begins: Ints
    ends: Ints
    shifts: Ints
    size: int

    def tails(self, drafts: NDArray[np.int32]) -> Ints:
        """``[P, ORDER + G]`` the last tokens of the text before each row, then its drafted ones; none of those that no
        text holds, and none before a text begins, but numbers below 0.
        """
        positions = self.ends[:, None] + np.arange(-ORDER, 0)
        before = np.where(positions >= self.begins[:, None], self.index.text[np.maximum(positions, 0)], -1)
        known = (drafts >= 0) & (drafts < self.size)
        return np.concatenate([before, np.where(known, drafts + self.shifts[:, None], -1)], axis=1)

    def look_up(self, tails: Ints, rows: Ints) -> Found:
        """The longest match of tails (``[n, ORDER]``) at some rows (``[n]``), with the tokens as they are."""
        found = self.index.look_up(tails, self.ends[rows], self.begins[rows])
        token = np.where(found.order > 0, found.token - self.shifts[rows], -1)
        return found._replace(token=token)


def texts_of(
    token: NDArray[np.int32], offsets: Ints, prompt_tokens: Sequence[Sequence[int]], capacity: int = CAPACITY
) -> Texts:
    """The texts of a trace; arguments as of :func:`suffix_columns`."""
    outputs = np.split(token.astype(np.int64), offsets[1:-1])
    prompts = [np.asarray(prompt, np.int64) for prompt in prompt_tokens]
    parts = [np.concatenate(pair) for pair in zip(prompts, outputs, strict=True)]
    size = 1 + max((int(part.max()) for part in parts if len(part)), default=0)
    lengths = np.array([len(part) for part in parts], np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])
    shifts = size * np.arange(len(parts))
    text = np.concatenate(parts) + np.repeat(shifts, lengths)
    rows = np.diff(offsets)
    begins = np.repeat(starts, rows)
    known = np.repeat(np.array([len(prompt) for prompt in prompts], np.int64), rows)
    ends = begins + known + np.arange(offsets[-1]) - np.repeat(offsets[:-1], rows)
    return Texts(TextIndex(text, capacity), begins, ends, np.repeat(shifts, rows), size)


def _habits(hits: Ints) -> tuple[NDArray[np.float64], Ints]:
    """:attr:`SuffixIndex.habit` and ``run`` before each output token of one prompt, ``[rows]`` each, from 1 where the
    token was predicted, -1 where another one was, 0 where none.
    """
    habits, runs = np.empty(len(hits)), np.empty(len(hits), np.int64)
    habit, run = 0.0, 0
    for row, hit in enumerate(hits.tolist()):
        habits[row], runs[row] = habit, run
        habit = HABIT * habit + (1 - HABIT) * hit
        run = run + 1 if hit > 0 else 0
    return habits, runs


def continuation_runs(
    token: NDArray[np.int32], offsets: Ints, prompt_tokens: Sequence[Sequence[int]], gamma_max: int
) -> NDArray[np.int16]:
    """``[P, G + 1]`` how many tokens looked up in the text would be accepted after ``d`` accepted drafted ones, column
    ``d``, at most ``G - d``.

    Those are the output's own tokens as long as they are what followed the longest matched ending in the text before
    the step, so the runs follow from the output alone, whatever drafts.
    """
    texts = texts_of(token, offsets, prompt_tokens)
    count = len(token)
    padded = np.concatenate([token.astype(np.int64), np.full(gamma_max, -1)])
    following = np.lib.stride_tricks.sliding_window_view(padded, gamma_max)[:count]  # [P, G] tokens from the row on
    left = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(count)
    following = np.where(np.arange(gamma_max) < left[:, None], following, -1)
    windows = np.lib.stride_tricks.sliding_window_view(texts.tails(following.astype(np.int32)), ORDER, axis=1)
    asked = following >= 0
    found = texts.look_up(windows[:, :-1][asked], np.nonzero(asked)[0])
    hit = np.zeros((count, gamma_max), np.bool_)
    hit[asked] = found.token == following[asked]
    run = np.zeros((count, gamma_max + 1), np.int16)
    for depth in range(gamma_max - 1, -1, -1):
        run[:, depth] = np.where(hit[:, depth], run[:, depth + 1] + 1, 0)
    return run


def continuation_cells(
    token: NDArray[np.int32],
    offsets: Ints,
    prompt_tokens: Sequence[Sequence[int]],
    draft_token: NDArray[np.int32],
) -> list[NDArray[np.int16]]:
    """What is known of the tokens that the text foretells after each draft: entry ``j``, ``[P, G - j]``, is of those
    after ``j`` drafted tokens, ``order << CODE_BITS | code``; 0 from where no ending matches.

    After a drafted token that is what the text foretold, the text foretells what it did before: those are looked up
    once.
    """
    gamma_max = draft_token.shape[1]
    texts = texts_of(token, offsets, prompt_tokens)
    tails = texts.tails(draft_token)
    chain = _follow(texts, tails[:, :ORDER], np.arange(len(token)), gamma_max)
    cells = [chain.cell]
    for depth in range(1, gamma_max + 1):
        drafted = draft_token[:, depth - 1]
        new = np.flatnonzero((drafted >= 0) & (drafted != chain.token[:, 0]))
        chain = Chain(chain.token[:, 1:].copy(), chain.cell[:, 1:].copy())
        chain.token[drafted < 0], chain.cell[drafted < 0] = -1, 0
        chain.token[new], chain.cell[new] = _follow(texts, tails[new, depth : depth + ORDER], new, gamma_max - depth)
        cells.append(chain.cell)
    return cells


def cells_of(view: TextView) -> list[NDArray[np.int16]]:
    """:func:`continuation_cells` of a trace, from what was derived before where it was."""
    if _CELLS not in view.derived:
        view.derived[_CELLS] = continuation_cells(view.token, view.offsets, view.prompt_tokens, view.draft_token)
    cells: list[NDArray[np.int16]] = view.derived[_CELLS]
    return cells


def matched_lengths(cells: NDArray[np.int16], least: int = 1) -> Ints:
    """``[P]`` how many tokens endings of at least ``least`` tokens foretell, of cells ``[P, n]``."""
    short = (cells >> CODE_BITS) < least
    return (
        np.where(short.any(axis=1), short.argmax(axis=1), cells.shape[1])
        if cells.shape[1]
        else np.zeros(len(cells), np.int64)
    )


class Chain(NamedTuple):
    """Tokens that the text foretells one after the other, ``[n, places]``: -1 and 0 from where it foretells none."""

    token: NDArray[np.int32]
    cell: NDArray[np.int16]


def _follow(texts: Texts, tails: Ints, rows: Ints, length: int) -> Chain:
    """Look up so many tokens at some rows, each after those before it."""
    chain = Chain(np.full((len(tails), length), -1, np.int32), np.zeros((len(tails), length), np.int16))
    at = np.arange(len(tails))
    for place in range(length):
        found = texts.look_up(tails, rows)
        held = found.order > 0
        at, rows, tails = at[held], rows[held], tails[held]
        if not len(rows):
            break
        token = found.token[held]
        chain.token[at, place] = token
        chain.cell[at, place] = found.order[held] << CODE_BITS | found.code[held]
        tails = np.concatenate([tails[:, 1:], (token + texts.shifts[rows])[:, None]], axis=1)
    return chain
