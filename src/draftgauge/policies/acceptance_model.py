"""Two logistic models of acceptance on causal signals: does the token just drafted stand, and would one more?

Both read this token and its confidence, the product and the worst of the confidences of the step, the depth, and
whether the text itself has said this before (:mod:`draftgauge.policies.suffix`). They are fitted by
:mod:`draftgauge.fitting.stopping`. A :class:`State` is that of many positions of a trace; one draft as it grows is
:mod:`draftgauge.policies.draft_chances`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.base import DecisionSeconds, TextView
from draftgauge.policies.suffix import ORDER
from draftgauge.policies.suffix_columns import SuffixColumns, suffix_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Value = Any
"""An array ``[n]``; a number where it is the same for all of them, and for weights."""

LEAST_CONFIDENCE = 1e-6
LEAST_DOUBT = 1e-3
"""The doubt of a token with confidence 1, as its logarithm is taken."""
DERIVED = "acceptance model"
"""Name of what is derived from a trace once, see :attr:`TextView.derived`."""
AGREEMENTS = (0, *range(1, ORDER + 1), *range(-1, -ORDER - 1, -1))
"""The classes of a drafted token, see :attr:`SuffixColumns.agreement`, in the order in which weights by class are
stored.
"""


class HazardByClass(NamedTuple):
    """The hazard's terms whose weights depend on the drafted token's class; also their weights."""

    one: Value
    log_confidence: Value
    log_doubt: Value


class HazardShared(NamedTuple):
    """The hazard's other terms; also their weights."""

    total: Value
    worst: Value
    previous: Value
    agreed: Value
    disagreed: Value
    log_depth: Value
    first: Value
    habit: Value
    run: Value


class NextByOrder(NamedTuple):
    """The next token's terms whose weights depend on the length of the matched ending; also their weights."""

    one: Value
    agrees: Value
    disagrees: Value
    log_confidence: Value


class NextShared(NamedTuple):
    """The next token's other terms; also their weights."""

    log_doubt: Value
    total: Value
    worst: Value
    agreed: Value
    disagreed: Value
    log_depth: Value
    none: Value
    first: Value
    habit: Value
    run: Value
    habit_at_none: Value


@dataclass(frozen=True)
class StoppingNumbers:
    """What is fitted.

    Attributes:
        hazard_by_agreement: ``[9][3]`` weights of :class:`HazardByClass`, in the order of :data:`AGREEMENTS`.
        hazard: weights of :class:`HazardShared`.
        next_by_order: ``[5][4]`` weights of :class:`NextByOrder`, by the length of the matched ending.
        next: weights of :class:`NextShared`.
        tokens: ids of the tokens that the next two fields are about, in the tokenizer that it was fitted with.
        token_hazard: added to the hazard's logit where the drafted token is one of them.
        token_next: added to the next token's logit after one of them.
        onward: ``[gamma_max]`` how often token ``d + 1`` of a draft stood where the ``d`` before it did.
        chances: ``[n][gamma_max]`` ``S_j m_j`` at ``n`` steps of the fitting prompts, to find the rate for any cost
            curve.
        accepted: ``[n]`` how many drafted tokens stood there.
        rate_scale: the rate of whole outputs over that of these steps, which know no end of the output and but one
            context length.
        horizon: tokens looked ahead, at least 1.
        decision_seconds: what deciding about one drafted token takes.
        step_decision_seconds: what the rule takes in each step besides, also in one that drafts nothing.
        reading_seconds: what reading one token of the prompt takes.
        online: go on calibrating while running.
        vocabulary: that the ids of ``tokens`` are of, as cost curves name it; empty where it was not known.
        trims: leave the last drafted token out where it is worth less than its verification.
    """

    hazard_by_agreement: tuple[tuple[float, ...], ...]
    hazard: tuple[float, ...]
    next_by_order: tuple[tuple[float, ...], ...]
    next: tuple[float, ...]
    tokens: tuple[int, ...]
    token_hazard: tuple[float, ...]
    token_next: tuple[float, ...]
    onward: tuple[float, ...]
    chances: tuple[tuple[float, ...], ...]
    accepted: tuple[int, ...]
    rate_scale: float = 1.0
    horizon: int = 8
    decision_seconds: float = 0.0
    step_decision_seconds: float = 0.0
    reading_seconds: float = 0.0
    online: bool = False
    vocabulary: str = ""
    trims: bool = False


def decision_seconds(numbers: StoppingNumbers) -> DecisionSeconds:
    """What deciding with these numbers takes."""
    return DecisionSeconds(numbers.decision_seconds, numbers.step_decision_seconds, numbers.reading_seconds)


def for_any_vocabulary(numbers: StoppingNumbers) -> StoppingNumbers:
    """The same without what is known of single tokens."""
    return replace(numbers, tokens=(), token_hazard=(), token_next=(), vocabulary="")


def cut(numbers: StoppingNumbers, gamma_max: int) -> StoppingNumbers:
    """The same for shorter drafts than those fitted."""
    chances = tuple(row[:gamma_max] for row in numbers.chances)
    return replace(numbers, onward=numbers.onward[:gamma_max], chances=chances)


class State(NamedTuple):
    """What is known after ``depth`` drafted tokens at ``n`` positions; every field but the depth is an array ``[n]``.

    Attributes:
        depth: drafted tokens, the same for all positions.
        token: the last token of text and draft, -1 if there is none.
        agreement: of that token if it is drafted, see :attr:`SuffixColumns.agreement`; 0 before the first.
        order: length of the ending of text and draft that the text holds already.
        log_confidence: of the drafted token.
        log_doubt: the logarithm of how far that is below 0.
        total, worst: sum and least of the step's ``log_confidence``.
        previous: ``log_confidence`` of the token before.
        agreed, disagreed: how many of the step's tokens were, and were not, what followed before.
        habit, run: of the text, see :class:`~draftgauge.policies.suffix.SuffixIndex`; the run as ``log(1 + run)``.
    """

    depth: int
    token: Value
    agreement: Value
    order: Value
    log_confidence: Value
    log_doubt: Value
    total: Value
    worst: Value
    previous: Value
    agreed: Value
    disagreed: Value
    habit: Value
    run: Value

    def drafted(self, token: Value, agreement: Value, order: Value, log_confidence: Value, log_doubt: Value) -> State:
        """The state after one more token."""
        return State._make(
            (
                self.depth + 1,
                token,
                agreement,
                order,
                log_confidence,
                log_doubt,
                self.total + log_confidence,
                np.minimum(self.worst, log_confidence),
                self.log_confidence,
                self.agreed + (agreement > 0),
                self.disagreed + (agreement < 0),
                self.habit,
                self.run,
            )
        )

    def at(self, keep: NDArray[np.bool_]) -> State:
        """Some of the positions."""
        columns: list[Any] = [values[keep] for values in self[1:]]
        return State(self.depth, *columns)


Terms = tuple[tuple[Value, ...], tuple[Value, ...]]
"""Terms whose weights depend on a class, and the others, in the order of their weights' fields."""


def hazard_terms(state: State) -> Terms:
    """What the hazard of the token drafted last is computed from; ``state.depth`` at least 1."""
    return (1.0, state.log_confidence, state.log_doubt), (
        state.total,
        state.worst,
        state.previous,
        state.agreed,
        state.disagreed,
        math.log1p(state.depth),
        float(state.depth == 1),
        state.habit,
        state.run,
    )


def next_terms(state: State) -> Terms:
    """What the chance of one more token is computed from."""
    none = float(state.depth == 0)
    return (1.0, state.agreement > 0, state.agreement < 0, state.log_confidence), (
        state.log_doubt,
        state.total,
        state.worst,
        state.agreed,
        state.disagreed,
        math.log1p(state.depth),
        none,
        float(state.depth == 1),
        state.habit,
        state.run,
        state.habit * none,
    )


class AcceptanceModels:
    """Both models, of many positions at once; of one see :class:`~draftgauge.policies.draft_chances.DraftChances`.

    Attributes:
        hazard_by_class, hazard, next_by_order, next: the weights; the first and the third in the order of
            :data:`AGREEMENTS`, and by the length of the matched ending.
        token_hazard, token_next: what single tokens add.
        hazard_bias, next_bias: added to the logits; calibration that goes on moves them.
    """

    def __init__(self, numbers: StoppingNumbers) -> None:
        """Name the fitted weights."""
        self.hazard_bias = self.next_bias = 0.0
        self.hazard_by_class = tuple(HazardByClass(*weights) for weights in numbers.hazard_by_agreement)
        self.hazard = HazardShared(*numbers.hazard)
        self.next_by_order = tuple(NextByOrder(*weights) for weights in numbers.next_by_order)
        self.next = NextShared(*numbers.next)
        self.token_hazard = TokenOffsets(numbers.tokens, numbers.token_hazard)
        self.token_next = TokenOffsets(numbers.tokens, numbers.token_next)

    def all_stand(self, state: State) -> Floats:
        """The chances ``[n]`` that the tokens drafted last stand where those before them do."""
        weights = _chosen(self.hazard_by_class, agreement_class(state.agreement))
        offset = self.token_hazard.at(state.token) + self.hazard_bias
        return _chances(_logit(hazard_terms(state), weights, self.hazard) + offset)

    def all_next_stand(self, state: State) -> Floats:
        """The chances ``[n]`` that one more token would stand where those before it do."""
        offset = self.token_next.at(state.token) + self.next_bias
        return _chances(_logit(next_terms(state), _chosen(self.next_by_order, state.order), self.next) + offset)


def _logit(terms: tuple[Sequence[Value], Sequence[Value]], by_class: Sequence[Value], shared: Sequence[float]) -> Value:
    return sum(map(mul, by_class, terms[0])) + sum(map(mul, shared, terms[1]))


def _chosen(weights: Sequence[Sequence[float]], classes: Ints) -> list[Floats]:
    """The weights of each position's class: one array ``[n]`` a term."""
    return list(np.asarray(weights)[classes].T)


def _chances(logit: Floats) -> Floats:
    chances: Floats = 1 / (1 + np.exp(-logit))
    return chances


def agreement_class(agreement: Ints) -> Ints:
    """The index of agreements in :data:`AGREEMENTS`."""
    return np.where(agreement >= 0, agreement, ORDER - agreement)


class TokenOffsets:
    """Offsets by token, 0 for tokens that were too rare to fit one."""

    def __init__(self, tokens: Sequence[int], offsets: Sequence[float]) -> None:
        self.of = dict(zip(tokens, offsets, strict=True))
        self._dense = np.zeros(max(tokens, default=-1) + 2)
        self._dense[list(tokens)] = offsets

    def at(self, tokens: Ints) -> Floats:
        """``[n]`` the offsets of token ids, where -1 stands for no token."""
        inside = (tokens >= 0) & (tokens < len(self._dense))
        offsets: Floats = self._dense[np.where(inside, tokens, -1)]
        return offsets


class Columns(NamedTuple):
    """What :func:`states` needs of a trace, computed once."""

    suffix: SuffixColumns
    log_confidence: Floats
    log_doubt: Floats


def columns_of(view: TextView) -> Columns:
    """The columns of a trace, from what was derived before where it was."""
    if DERIVED not in view.derived:
        confidence = np.where(view.draft_token >= 0, view.signals.confidence, 1.0).astype(np.float64)
        logs = np.log(np.maximum(confidence, LEAST_CONFIDENCE))
        view.derived[DERIVED] = Columns(suffix_of(view), logs, np.log(LEAST_DOUBT - logs))
    columns: Columns = view.derived[DERIVED]
    return columns


def states(view: TextView) -> Generator[State, NDArray[np.bool_] | None, None]:
    """The states of positions at depth 0, 1, ... ``gamma_max``; send a mask ``[n]`` to go on with some of them only."""
    columns = columns_of(view)
    suffix = columns.suffix
    rows = np.arange(len(view.token))
    zeros, none = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
    order = suffix.order[:, 0].astype(np.int64)
    habit, run = suffix.habit, np.log1p(suffix.run)
    state = State(0, last_tokens(view), none, order, zeros, zeros, zeros, zeros, zeros, none, none, habit, run)
    for depth in range(1, view.draft_token.shape[1] + 1):
        keep = yield state
        if keep is not None:
            rows = rows[keep]
            state = state.at(keep)
        state = state.drafted(
            view.draft_token[rows, depth - 1].astype(np.int64),
            suffix.agreement[rows, depth - 1].astype(np.int64),
            suffix.order[rows, depth].astype(np.int64),
            columns.log_confidence[rows, depth - 1],
            columns.log_doubt[rows, depth - 1],
        )
    yield state


def last_tokens(view: TextView) -> Ints:
    """``[P]`` the last token of the text before each position."""
    last = np.concatenate([[-1], view.token[:-1]]).astype(np.int64)
    last[view.offsets[:-1]] = [prompt[-1] for prompt in view.prompt_tokens]
    return last
