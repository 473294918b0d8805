"""The suffix index at every position of a trace at once: what :mod:`draftgauge.policies.suffix` says, by arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.base import TextView
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.policies.suffix import CAPACITY, CODE_BITS, HABIT, ORDER
from draftgauge.policies.text_index import LongestMatches, TextIndex

Ints = NDArray[np.int64]

_CONTINUATIONS, _COLUMNS = "continuations", "suffix columns"


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
        view.derived[_COLUMNS] = suffix_columns(
            view.token, view.offsets, view.prompt_tokens, view.draft_token, view.stored
        )
    columns: SuffixColumns = view.derived[_COLUMNS]
    return columns


def suffix_columns(
    token: NDArray[np.int32],
    offsets: Ints,
    prompt_tokens: Sequence[Sequence[int]],
    draft_token: NDArray[np.int32],
    stored: StoredTexts | None = None,
) -> SuffixColumns:
    """Compute :class:`SuffixColumns`.

    Args:
        token: ``[P]`` output tokens of all prompts, one after the other.
        offsets: ``[prompts + 1]`` first row of each prompt, then ``P``.
        prompt_tokens: of each prompt.
        draft_token: ``[P, G]``, -1 where nothing was drafted.
        stored: texts that are looked up beside them; habit and run are of the text alone.
    """
    texts = texts_of(token, offsets, prompt_tokens, stored=stored)
    rows, gamma = draft_token.shape
    windows = np.lib.stride_tricks.sliding_window_view(texts.tails(draft_token), ORDER, axis=1)  # [P, G + 1, ORDER]
    matches = texts.look_up(windows.reshape(-1, ORDER), np.repeat(np.arange(rows), gamma + 1))
    predicted, matched = matches.token.reshape(rows, gamma + 1), matches.order.astype(np.int8).reshape(rows, gamma + 1)
    agreement = np.where(predicted[:, :-1] == draft_token, matched[:, :-1], -matched[:, :-1])
    own, own_order = predicted[:, 0], matched[:, 0].astype(np.int64)
    if stored is not None:
        own, own_order, _ = texts.look_up_own(windows[:, 0], np.arange(rows))
    hits = np.where(own_order == 0, 0, np.where(own == token, 1, -1))
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
        ends: ``[P]`` where the text before each row ends.
        shifts: ``[P]`` what is added to the row's tokens.
        size: distance between shifts, more than any token of a text.
        stored: texts that are looked up beside them.
    """

    index: TextIndex
    begins: Ints
    ends: Ints
    shifts: Ints
    size: int
    stored: StoredTexts | None = None

    def tails(self, drafts: NDArray[np.int32]) -> Ints:
        """``[P, ORDER + G]`` the last tokens of the text before each row, then its drafted ones; none of those that no
        text holds, and none before a text begins, but numbers below 0.
        """
        positions = self.ends[:, None] + np.arange(-ORDER, 0)
        before = np.where(positions >= self.begins[:, None], self.index.text[np.maximum(positions, 0)], -1)
        in_a_text = (drafts >= 0) & (drafts < self.size)
        return np.concatenate([before, np.where(in_a_text, drafts + self.shifts[:, None], -1)], axis=1)

    def look_up(self, tails: Ints, rows: Ints) -> LongestMatches:
        """The longest match of tails (``[n, ORDER]``) at some rows (``[n]``), with the tokens as they are."""
        matches = self.look_up_own(tails, rows)
        if self.stored is not None:
            asked = np.flatnonzero(matches.order < ORDER)
            unshifted = tails[asked]
            unshifted = np.where(unshifted >= 0, unshifted - self.shifts[rows[asked], None], -1)
            columns = self.stored.columns
            stored = columns.look_up(unshifted, np.full(len(asked), len(columns.text)))
            longer = stored.order > matches.order[asked]
            for ours, theirs in zip(matches, stored, strict=True):
                ours[asked[longer]] = theirs[longer]
        return matches

    def look_up_own(self, tails: Ints, rows: Ints) -> LongestMatches:
        """The same in the texts alone."""
        matches = self.index.look_up(tails, self.ends[rows], self.begins[rows])
        token = np.where(matches.order > 0, matches.token - self.shifts[rows], -1)
        return matches._replace(token=token)


def texts_of(
    token: NDArray[np.int32], offsets: Ints, prompt_tokens: Sequence[Sequence[int]], stored: StoredTexts | None = None
) -> Texts:
    """The texts of a trace; arguments as of :func:`suffix_columns`."""
    outputs = np.split(token.astype(np.int64), offsets[1:-1])
    prompts = [np.asarray(prompt, np.int64) for prompt in prompt_tokens]
    parts = [np.concatenate(pair) for pair in zip(prompts, outputs, strict=True)]
    kept = [] if stored is None else stored.texts
    size = 1 + max((int(part.max()) for part in (*parts, *kept) if len(part)), default=0)
    lengths = np.array([len(part) for part in parts], np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])
    shifts = size * np.arange(len(parts))
    text = np.concatenate(parts) + np.repeat(shifts, lengths)
    rows = np.diff(offsets)
    begins = np.repeat(starts, rows)
    prompt_lengths = np.repeat(np.array([len(prompt) for prompt in prompts], np.int64), rows)
    ends = begins + prompt_lengths + np.arange(offsets[-1]) - np.repeat(offsets[:-1], rows)
    return Texts(TextIndex(text, CAPACITY), begins, ends, np.repeat(shifts, rows), size, stored)


def _habits(hits: Ints) -> tuple[NDArray[np.float64], Ints]:
    """:attr:`SuffixIndex.habit` and ``run`` before each output token, ``[rows]``, from hits (1), misses (-1) and 0."""
    habits, runs = np.empty(len(hits)), np.empty(len(hits), np.int64)
    habit, run = 0.0, 0
    for row, hit in enumerate(hits.tolist()):
        habits[row], runs[row] = habit, run
        habit = HABIT * habit + (1 - HABIT) * hit
        run = run + 1 if hit > 0 else 0
    return habits, runs


def continuation_runs(
    token: NDArray[np.int32],
    offsets: Ints,
    prompt_tokens: Sequence[Sequence[int]],
    gamma_max: int,
    stored: StoredTexts | None = None,
) -> NDArray[np.int16]:
    """``[P, G + 1]`` how many tokens looked up in the text would be accepted after ``d`` accepted drafted ones, column
    ``d``, at most ``G - d``.

    Those are the output's own tokens as long as they are what followed the longest matched ending in the text before
    the step, or in stored texts, so the runs follow from the output alone, whatever drafts.
    """
    texts = texts_of(token, offsets, prompt_tokens, stored=stored)
    count = len(token)
    padded = np.concatenate([token.astype(np.int64), np.full(gamma_max, -1)])
    following = np.lib.stride_tricks.sliding_window_view(padded, gamma_max)[:count]  # [P, G] tokens from the row on
    left = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(count)
    following = np.where(np.arange(gamma_max) < left[:, None], following, -1)
    windows = np.lib.stride_tricks.sliding_window_view(texts.tails(following.astype(np.int32)), ORDER, axis=1)
    asked = following >= 0
    matches = texts.look_up(windows[:, :-1][asked], np.nonzero(asked)[0])
    hit = np.zeros((count, gamma_max), np.bool_)
    hit[asked] = matches.token == following[asked]
    run = np.zeros((count, gamma_max + 1), np.int16)
    for depth in range(gamma_max - 1, -1, -1):
        run[:, depth] = np.where(hit[:, depth], run[:, depth + 1] + 1, 0)
    return run


class Continuation(NamedTuple):
    """Tokens that the text foretells one after the other at ``n`` positions, ``[n, offsets]`` each: -1 and 0 from where
    it foretells none.

    Attributes:
        token: the tokens.
        cell: what is known of each, ``order << CODE_BITS | code``.
    """

    token: NDArray[np.int32]
    cell: NDArray[np.int16]


def continuations(
    token: NDArray[np.int32],
    offsets: Ints,
    prompt_tokens: Sequence[Sequence[int]],
    draft_token: NDArray[np.int32],
    stored: StoredTexts | None = None,
) -> list[Continuation]:
    """What the text foretells after each draft: entry ``j``, ``[P, G - j]``, is of the tokens after ``j`` drafted ones.

    After a drafted token that is what the text foretold, the text foretells what it did before: those are looked up
    once.
    """
    gamma_max = draft_token.shape[1]
    texts = texts_of(token, offsets, prompt_tokens, stored=stored)
    tails = texts.tails(draft_token)
    by_depth = [_follow(texts, tails[:, :ORDER], np.arange(len(token)), gamma_max)]
    for depth in range(1, gamma_max + 1):
        drafted, before = draft_token[:, depth - 1], by_depth[-1]
        new = np.flatnonzero((drafted >= 0) & (drafted != before.token[:, 0]))
        after = Continuation(before.token[:, 1:].copy(), before.cell[:, 1:].copy())
        after.token[drafted < 0], after.cell[drafted < 0] = -1, 0
        after.token[new], after.cell[new] = _follow(texts, tails[new, depth : depth + ORDER], new, gamma_max - depth)
        by_depth.append(after)
    return by_depth


def continuations_of(view: TextView) -> list[Continuation]:
    """:func:`continuations` of a trace, from what was derived before where it was."""
    if _CONTINUATIONS not in view.derived:
        view.derived[_CONTINUATIONS] = continuations(
            view.token, view.offsets, view.prompt_tokens, view.draft_token, view.stored
        )
    derived: list[Continuation] = view.derived[_CONTINUATIONS]
    return derived


def matched_lengths(cells: NDArray[np.int16], least: int = 1) -> Ints:
    """``[P]`` how many tokens endings of at least ``least`` tokens foretell, of cells ``[P, n]``."""
    short = (cells >> CODE_BITS) < least
    return (
        np.where(short.any(axis=1), short.argmax(axis=1), cells.shape[1])
        if cells.shape[1]
        else np.zeros(len(cells), np.int64)
    )


def _follow(texts: Texts, tails: Ints, rows: Ints, length: int) -> Continuation:
    """Look up ``length`` tokens at some rows, each after those before it."""
    continuation = Continuation(np.full((len(tails), length), -1, np.int32), np.zeros((len(tails), length), np.int16))
    at = np.arange(len(tails))
    for position in range(length):
        matches = texts.look_up(tails, rows)
        held = matches.order > 0
        at, rows, tails = at[held], rows[held], tails[held]
        if not len(rows):
            break
        token = matches.token[held]
        continuation.token[at, position] = token
        continuation.cell[at, position] = matches.order[held] << CODE_BITS | matches.code[held]
        tails = np.concatenate([tails[:, 1:], (token + texts.shifts[rows])[:, None]], axis=1)
    return continuation
