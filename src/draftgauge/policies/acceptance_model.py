"""Two logistic models of acceptance on causal signals: does the token just drafted stand, and would one more?

Both read this token and its confidence, the product and the worst of the confidences of the step, the depth, and
whether the text itself has said this before (:mod:`draftgauge.policies.suffix`). They are fitted by
:mod:`draftgauge.fitting.stopping`, and evaluated in two ways that agree: token by token in
:class:`~draftgauge.policies.stopping.ThroughputStopping`, and here for many positions of a trace.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.base import TextView
from draftgauge.policies.suffix import ORDER, SuffixColumns, suffix_columns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEAST_CONFIDENCE = 1e-6
DERIVED = "acceptance model"
"""Name of what is derived from a trace once, see :attr:`TextView.derived`."""
AGREEMENTS = (0, *range(1, ORDER + 1), *range(-1, -ORDER - 1, -1))
"""The classes of a drafted token, see :attr:`SuffixColumns.agreement`; an agreement is an index into what is stored in
this order.
"""
PER_AGREEMENT = ("one", "log_confidence", "log_doubt")
OF_HAZARD = ("sum", "worst", "previous", "agreed", "disagreed", "log_depth", "first", "habit", "run")
PER_KNOWN = ("one", "agrees", "disagrees", "log_confidence")
OF_NEXT = (
    "log_doubt",
    "sum",
    "worst",
    "agreed",
    "disagreed",
    "log_depth",
    "none",
    "first",
    "habit",
    "run",
    "habit_at_none",
)


@dataclass(frozen=True)
class StoppingNumbers:
    """What is fitted.

    Attributes:
        hazard_by_agreement: ``[9][3]`` weights of :data:`PER_AGREEMENT`, in the order of :data:`AGREEMENTS`.
        hazard: weights of :data:`OF_HAZARD`.
        next_by_known: ``[5][4]`` weights of :data:`PER_KNOWN`, by the length of the known ending.
        next: weights of :data:`OF_NEXT`.
        tokens: ids of the tokens that the next two speak of; they are those of the tokenizer that it was fitted with.
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
        online: go on calibrating while running.
        vocabulary: that the ids of ``tokens`` are of, as cost curves name it; empty where it was not known.
    """

    hazard_by_agreement: tuple[tuple[float, ...], ...]
    hazard: tuple[float, ...]
    next_by_known: tuple[tuple[float, ...], ...]
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
    online: bool = False
    vocabulary: str = ""


def for_any_vocabulary(numbers: StoppingNumbers) -> StoppingNumbers:
    """The same without what is known of single tokens."""
    return replace(numbers, tokens=(), token_hazard=(), token_next=(), vocabulary="")


def cut(numbers: StoppingNumbers, gamma_max: int) -> StoppingNumbers:
    """The same for shorter drafts than those fitted."""
    chances = tuple(row[:gamma_max] for row in numbers.chances)
    return replace(numbers, onward=numbers.onward[:gamma_max], chances=chances)


class States(NamedTuple):
    """Some positions (``n`` of them) after ``depth`` drafted tokens; every array is ``[n]``. ``token`` is the last one,
    drafted or not.
    """

    depth: int
    token: Ints
    agreement: Ints
    known: Ints
    log_confidence: Floats
    log_doubt: Floats
    total: Floats
    worst: Floats
    previous: Floats
    agreed: Ints
    disagreed: Ints
    habit: Floats
    run: Floats

    def at(self, keep: NDArray[np.bool_]) -> States:
        """Some of the positions."""
        columns: list[Any] = [values[keep] for values in self[1:]]
        return States(self.depth, *columns)


class Columns(NamedTuple):
    """What :func:`states` needs of a trace, computed once."""

    suffix: SuffixColumns
    log_confidence: Floats
    log_doubt: Floats


def columns_of(view: TextView) -> Columns:
    """The columns of a trace, from what was derived before where it was."""
    if DERIVED not in view.derived:
        suffix = suffix_columns(view.token, view.offsets, view.prompt_tokens, view.draft_token)
        confidence = np.where(view.draft_token >= 0, view.signals.confidence, 1.0).astype(np.float64)
        logs = np.log(np.maximum(confidence, LEAST_CONFIDENCE))
        view.derived[DERIVED] = Columns(suffix, logs, np.log(1e-3 - logs))
    columns: Columns = view.derived[DERIVED]
    return columns


def states(view: TextView) -> Generator[States, NDArray[np.bool_] | None, None]:
    """The states of positions at depth 0, 1, ... ``gamma_max``; send a mask ``[n]`` to go on with some of them only."""
    columns = columns_of(view)
    suffix = columns.suffix
    rows = np.arange(len(view.token))
    zeros = np.zeros(len(rows))
    nothing = np.zeros(len(rows), np.int64)
    habit, run = suffix.habit, np.log1p(suffix.run)
    known = suffix.known[:, 0].astype(np.int64)
    state = States(
        0, last_tokens(view), nothing, known, zeros, zeros, zeros, zeros, zeros, nothing, nothing, habit, run
    )
    for depth in range(1, view.draft_token.shape[1] + 1):
        keep = yield state
        if keep is not None:
            rows = rows[keep]
            state = state.at(keep)
        logs = columns.log_confidence[rows, depth - 1]
        agreement = suffix.agreement[rows, depth - 1].astype(np.int64)
        state = States(
            depth=depth,
            token=view.draft_token[rows, depth - 1].astype(np.int64),
            agreement=agreement,
            known=suffix.known[rows, depth].astype(np.int64),
            log_confidence=logs,
            log_doubt=columns.log_doubt[rows, depth - 1],
            total=state.total + logs,
            worst=np.minimum(state.worst, logs),
            previous=state.log_confidence,
            agreed=state.agreed + (agreement > 0),
            disagreed=state.disagreed + (agreement < 0),
            habit=state.habit,
            run=state.run,
        )
    yield state


def last_tokens(view: TextView) -> Ints:
    """``[P]`` the last token of the text before each position."""
    last = np.concatenate([[-1], view.token[:-1]]).astype(np.int64)
    last[view.offsets[:-1]] = [prompt[-1] for prompt in view.prompt_tokens]
    return last


class TokenOffsets:
    """Offsets by token, 0 for tokens that were too rare to fit one."""

    def __init__(self, tokens: Sequence[int], offsets: Sequence[float]) -> None:
        self.of = dict(zip(tokens, offsets, strict=True))
        self._dense = np.zeros(max(tokens, default=-1) + 2)
        self._dense[list(tokens)] = offsets

    def at(self, tokens: Ints) -> Floats:
        """``[n]`` of token ids, -1 where there is none."""
        found: Floats = self._dense[np.where((tokens >= 0) & (tokens < len(self._dense)), tokens, -1)]
        return found


def hazard_terms(state: States) -> tuple[list[Floats], list[Any]]:
    """Values of :data:`PER_AGREEMENT` and of :data:`OF_HAZARD`, arrays ``[n]`` or numbers."""
    depth = state.depth
    own = [np.ones(len(state.total)), state.log_confidence, state.log_doubt]
    shared = [
        state.total,
        state.worst,
        state.previous,
        state.agreed,
        state.disagreed,
        math.log1p(depth),
        float(depth == 1),
    ]
    return own, [*shared, state.habit, state.run]


def next_terms(state: States) -> tuple[list[Floats], list[Any]]:
    """Values of :data:`PER_KNOWN` and of :data:`OF_NEXT`, arrays ``[n]`` or numbers."""
    depth, none = state.depth, float(state.depth == 0)
    agrees, disagrees = ((sign * state.agreement > 0).astype(np.float64) for sign in (1, -1))
    own = [np.ones(len(state.total)), agrees, disagrees, state.log_confidence]
    shared = [
        state.log_doubt,
        state.total,
        state.worst,
        state.agreed,
        state.disagreed,
        math.log1p(depth),
        none,
        float(depth == 1),
    ]
    return own, [*shared, state.habit, state.run, state.habit * none]


def agreement_class(agreement: Ints) -> Ints:
    """Where agreements stand in :data:`AGREEMENTS`."""
    return np.where(agreement >= 0, agreement, ORDER - agreement)


def weigh(terms: tuple[list[Floats], list[Any]], own: Floats, shared: Sequence[float], bias: Floats) -> Floats:
    """``[n]`` chances from the values of terms, the weights ``[n, .]`` of those by class and of the shared ones, and
    offsets ``[n]``.
    """
    values, others = terms
    logit = sum((own[:, i] * value for i, value in enumerate(values)), np.zeros(len(own)))
    for weight, value in zip(shared, others, strict=True):
        logit = logit + weight * value
    chance: Floats = 1 / (1 + np.exp(-(logit + bias)))
    return chance


def logistic(logit: float) -> float:
    """A chance from its logit."""
    return 1 / (1 + math.exp(-logit))
