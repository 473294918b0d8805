"""The chance that a token which the text foretells is accepted, where those before it are.

A logistic model of causal signals: the length of the matched ending and what is known of it (how often it was followed,
how often in a row by the same token), how far the output has been repeating the text (habit and run), the offset of the
token after the drafted ones, what the draft showed: how many tokens, how sure it is that they stand, and whether they
were themselves what the text foretold; and which token it is, and which one it follows: some words are always copied,
and after some nothing is. What is known of tokens counts the less the more the output has been repeating the text of
late: what runs in circles copies every word. The model is fitted by :mod:`draftgauge.fitting.tail`.

What depends on the match alone is a table with one entry for every match (:data:`CELLS`), what depends on the state
before the first looked-up token a number, so that a token costs two accesses to a dictionary and one exponential.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.acceptance_model import TokenOffsets
from draftgauge.policies.suffix import CODE_BITS, MOST, ORDER
from draftgauge.policies.suffix_columns import Continuation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Value = Any
"""A number, or an array ``[n]`` of them."""

CELLS = (ORDER + 1) << CODE_BITS
"""Kinds of match: ``order << CODE_BITS | code`` of :mod:`draftgauge.policies.suffix`."""
LEAST_STAND = 1e-6


class TailByOrder(NamedTuple):
    """The terms whose weights depend on the length of the matched ending; also their weights."""

    one: Value
    log_streak: Value
    log_seen: Value
    unbroken: Value


class TailShared(NamedTuple):
    """The other terms; also their weights.

    ``stand`` is the chance that all drafted tokens stand, ``drafted`` how many there are, ``agreed`` and ``disagreed``
    how many of them were, and were not, what the text foretold.
    """

    habit: Value
    run: Value
    log_place: Value
    first: Value
    undrafted: Value
    log_drafted: Value
    log_stand: Value
    agreed: Value
    disagreed: Value


@dataclass(frozen=True)
class TailNumbers:
    """What is fitted.

    Attributes:
        by_order: ``[4][4]`` weights of :class:`TailByOrder`, by the length of the matched ending.
        shared: weights of :class:`TailShared`.
        tokens: ids of the tokens that the next two fields are about, in the tokenizer that it was fitted with.
        token_after: added to the logit of a looked-up token that follows one of them.
        token_foretold: added where it is one of them.
    """

    by_order: tuple[tuple[float, ...], ...]
    shared: tuple[float, ...]
    tokens: tuple[int, ...] = ()
    token_after: tuple[float, ...] = ()
    token_foretold: tuple[float, ...] = ()


class TailState(NamedTuple):
    """What is known before the first looked-up token, of one position or of ``n``.

    Attributes:
        depth: drafted tokens, the same for all positions.
        token: the last one of text and draft.
        stand: chance that all of them stand.
        agreed, disagreed: of them, by what the text foretold.
        habit, run: of the text, the run as ``log(1 + run)``.
    """

    depth: int
    token: Value
    stand: Value
    agreed: Value
    disagreed: Value
    habit: Value
    run: Value


def match_terms(cells: Ints) -> TailByOrder:
    """Terms of matches ``[n]``."""
    streak, seen = (cells >> 4) & MOST, cells & MOST
    return TailByOrder(np.ones(len(cells)), np.log(np.maximum(streak, 1)), np.log(np.maximum(seen, 1)), streak == seen)


def shared_terms(state: TailState, offset: Value) -> TailShared:
    """Terms of the looked-up token at an offset, 1 for the first, as arrays."""
    return TailShared(
        state.habit,
        state.run,
        np.log(offset),
        np.equal(offset, 1),
        float(state.depth == 0),
        math.log1p(state.depth),
        np.log(np.maximum(state.stand, LEAST_STAND)),
        state.agreed,
        state.disagreed,
    )


class TailModel:
    """The fitted model, for one position by numbers and for many by arrays."""

    def __init__(self, numbers: TailNumbers, longest: int) -> None:
        """Tabulate.

        Args:
            numbers: fitted.
            longest: most tokens of a step.
        """
        cells = np.arange(CELLS)
        weights = np.concatenate([np.zeros((1, len(TailByOrder._fields))), numbers.by_order])[cells >> CODE_BITS]
        terms = np.stack([np.asarray(term, np.float64) for term in match_terms(cells)], axis=1)
        shared = TailShared(*numbers.shared)
        offsets = np.arange(1, longest + 1)
        self.of_match: list[float] = (terms * weights).sum(axis=1).tolist()
        self.of_offset: list[float] = (shared.log_place * np.log(offsets) + shared.first * (offsets == 1)).tolist()
        self.after, self.foretold = (
            TokenOffsets(numbers.tokens, offsets) for offsets in (numbers.token_after, numbers.token_foretold)
        )
        depths = np.arange(longest + 1)
        self._of_depth: list[float] = (
            shared.log_drafted * np.log1p(depths) + shared.undrafted * (depths == 0)
        ).tolist()
        self._shared = shared

    def of_text(self, habit: Value, run: Value) -> Value:
        """What the text before the step adds to the logits."""
        return self._shared.habit * habit + self._shared.run * run

    def of_draft(self, depth: int, log_stand: Value, agreed: Value, disagreed: Value) -> Value:
        """What the drafted tokens add to the logits; see :class:`TailState`."""
        drafted = self._of_depth[depth] + self._shared.log_stand * log_stand
        return drafted + self._shared.agreed * agreed + self._shared.disagreed * disagreed

    def gains(self, state: TailState, foretold: Continuation) -> Floats:
        """``[n, offsets]`` chance that the tokens up to each offset, drafted and looked up, all stand; 0 from where the
        text foretells none.

        Args:
            state: of ``n`` positions.
            foretold: ``[n, offsets]`` by the text.
        """
        cells, tokens = foretold.cell, foretold.token
        log_stand = np.log(np.maximum(state.stand, LEAST_STAND))
        base = self.of_text(state.habit, state.run) + self.of_draft(
            state.depth, log_stand, state.agreed, state.disagreed
        )
        offsets = cells.shape[1]
        logits = np.asarray(self.of_match)[cells] + base[:, None] + np.asarray(self.of_offset[:offsets])
        of_tokens = self.foretold.at(tokens.astype(np.int64)) + self.after.at(tokens_before(state.token, tokens))
        logits += token_share(state.habit)[:, None] * of_tokens
        chances = np.where(cells > 0, 1 / (1 + np.exp(-logits)), 0.0)
        stand = np.asarray(state.stand, np.float64)[:, None]
        together: Floats = np.cumprod(np.concatenate([stand, chances], axis=1), axis=1)[:, 1:]
        return together


def token_share(habit: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much of what is known of tokens counts, by habit; see :class:`~draftgauge.policies.suffix.SuffixIndex`."""
    return 1 - np.maximum(habit, 0.0)


def tokens_before(last: Value, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
    """``[n, offsets]`` the token before each of some that follow a last one ``[n]``."""
    first = np.broadcast_to(np.asarray(last, np.int64), len(tokens))
    return np.concatenate([first[:, None], tokens], axis=1)[:, :-1] if tokens.shape[1] else tokens.astype(np.int64)


def for_any_vocabulary(numbers: TailNumbers) -> TailNumbers:
    """The same without what is known of single tokens."""
    return replace(numbers, tokens=(), token_after=(), token_foretold=())
