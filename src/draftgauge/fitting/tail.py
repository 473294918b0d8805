"""Fit the model of the text's acceptance (:mod:`draftgauge.policies.tail_model`) to dense traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from draftgauge.core.errors import TraceError
from draftgauge.fitting.logistic import (
    DIGITS,
    LEAST_EXAMPLES,
    REGULARISATION,
    UNVISITED,
    fit_scaled,
    mean_shift,
    spread_design,
)
from draftgauge.policies.acceptance_model import AcceptanceModels, StoppingNumbers, TokenOffsets, columns_of, states
from draftgauge.policies.suffix import CODE_BITS, ORDER
from draftgauge.policies.suffix_columns import continuations_of
from draftgauge.policies.tail_model import (
    TailByOrder,
    TailNumbers,
    TailShared,
    TailState,
    match_terms,
    shared_terms,
    token_share,
    tokens_before,
)
from draftgauge.replaying.rows import draft_caps, prompt_of_rows
from draftgauge.replaying.simulate import text_runs
from draftgauge.replaying.splits import prompt_keys
from draftgauge.replaying.views import text_view
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_EXAMPLES = 400_000
TOKEN_SCALES = (0.0, 0.5, 1.0, 2.0, 4.0)
"""How freely single tokens may have weights of their own, as a multiple of the spread that the prior gives to others; 0
is not at all. The one that predicts best on prompts left out is taken.
"""
FOLDS = 4
MOST_IN_FOLDS = 40_000
CONVERGED = {"ftol": 1e-14, "gtol": 1e-6, "maxiter": 1000}
"""Until nothing is left to gain: the order of the sums then changes the last digit that is kept, and seldom."""


class TailExamples(NamedTuple):
    """The tail model's data, ``n`` examples.

    Attributes:
        terms: ``[n, K]``.
        token, before: ``[n]`` the looked-up token, and the one that it follows.
        prompt: ``[n]`` number of the prompt.
        stood: ``[n]`` whether the looked-up token was the output's.
        visited: ``[n]`` whether the policy appends a tail there.
    """

    terms: Floats
    token: Ints
    before: Ints
    prompt: Ints
    stood: NDArray[np.bool_]
    visited: NDArray[np.bool_]

    @property
    def token_share(self) -> Floats:
        """``[n]`` how much of what is known of tokens counts."""
        return token_share(self.terms[:, HABIT])


HABIT = ORDER * len(TailByOrder._fields) + TailShared._fields.index("habit")  # of the terms


@dataclass(frozen=True)
class Appended:
    """What the policy did, ``[P]`` each: tokens drafted, and kept of these, -1 where no step starts; and whether a tail
    was appended.
    """

    drafted: Ints
    kept: Ints
    tail: NDArray[np.bool_]


def fit_tail(traces: Sequence[Trace], stopping: StoppingNumbers, done: Sequence[Appended] | None) -> TailNumbers:
    """The tail's model, for the drafter's models and where the policy ``done`` appends; everywhere alike if None."""
    parts = [
        tail_examples(trace, stopping, None if done is None else done[number]) for number, trace in enumerate(traces)
    ]
    number_of = {key: number for number, key in enumerate(dict.fromkeys(k for t in traces for k in prompt_keys(t)))}
    for number, trace in enumerate(traces):  # a prompt of several traces is one
        numbers = np.array([number_of[key] for key in prompt_keys(trace)], np.int64)
        parts[number] = parts[number]._replace(prompt=numbers[parts[number].prompt])
    examples = _joined(parts)
    stood, visited = examples.stood, examples.visited
    if len(set(stood.tolist())) < 2:
        raise TraceError(
            "the traces hold no accepted and rejected tokens that the text foretold, to fit the tail on: record more "
            "prompts"
        )
    model = _Design(examples, np.where(visited, 1.0, UNVISITED)).fit(token_scale(examples))
    return model.numbers(mean_shift(model.logits(examples)[visited], stood[visited]))


@dataclass(frozen=True)
class _Fit:
    """A fitted model of the tail: weights ``[K]``, a constant, and what tokens add, behind them and by themselves."""

    weights: Floats
    constant: float
    tokens: Ints
    after: Floats
    foretold: Floats

    def logits(self, examples: TailExamples) -> Floats:
        """``[n]``."""
        tokens = self.tokens.tolist()
        logits: Floats = examples.terms @ self.weights + self.constant
        of_tokens = TokenOffsets(tokens, self.after.tolist()).at(examples.before)
        of_tokens += TokenOffsets(tokens, self.foretold.tolist()).at(examples.token)
        return logits + examples.token_share * of_tokens

    def numbers(self, shift: float) -> TailNumbers:
        """With the constant moved."""
        width = len(TailByOrder._fields)
        blocks = self.weights[: ORDER * width].reshape(ORDER, width).copy()
        blocks[:, 0] += self.constant + shift
        shared: list[float] = self.weights[ORDER * width :].tolist()
        after, foretold = (tuple(np.round(offsets, DIGITS).tolist()) for offsets in (self.after, self.foretold))
        return TailNumbers(
            tuple(map(tuple, blocks.tolist())), tuple(shared), tuple(self.tokens.tolist()), after, foretold
        )


class _Design:
    """Examples as columns of two logistic regressions: the terms at unit scale; and one column for each common token,
    added to what the terms say.

    The terms are fitted by themselves, so that they are right without the tokens, too: in other texts, in those that
    repeat themselves, for another vocabulary.
    """

    def __init__(self, examples: TailExamples, weight: Floats) -> None:
        self.examples, self.weight = examples, weight
        self.weights, self.constant = fit_scaled(examples.terms, examples.stood, weight)
        self.common = [_common(examples.before), _common(examples.token)]
        columns = [_indicators(*each) for each in zip((examples.before, examples.token), self.common, strict=True)]
        self.columns = (sparse.diags(examples.token_share) @ sparse.hstack(columns)).tocsr()

    def fit(self, token_scale: float) -> _Fit:
        """The model, the offsets of tokens as free as the scale says."""
        none = np.zeros(0)
        if not token_scale:
            return _Fit(self.weights, self.constant, np.zeros(0, np.int64), none, none)
        tokens = np.union1d(*self.common)
        offsets = np.zeros((2, len(tokens)))
        parts = np.split(self._offsets(token_scale), [len(self.common[0])])
        for row, (common, values) in enumerate(zip(self.common, parts, strict=True)):
            offsets[row, np.searchsorted(tokens, common)] = values
        return _Fit(self.weights, self.constant, tokens, offsets[0], offsets[1])

    def _offsets(self, token_scale: float) -> Floats:
        """The offsets of the greatest likelihood under the prior."""
        logits = self.examples.terms @ self.weights + self.constant
        signs, prior = np.where(self.examples.stood, 1.0, -1.0), 1 / (REGULARISATION * token_scale**2)

        def loss(offsets: Floats) -> tuple[float, Floats]:
            margins = signs * (logits + self.columns @ offsets)
            value = (self.weight * np.logaddexp(0.0, -margins)).sum() + prior / 2 * (offsets**2).sum()
            pull = self.weight * signs * expit(-margins)
            return float(value), prior * offsets - self.columns.T @ pull

        start = np.zeros(self.columns.shape[1])
        best: Floats = minimize(loss, start, jac=True, method="L-BFGS-B", options=CONVERGED).x
        return best


def token_scale(examples: TailExamples) -> float:
    """How freely tokens may have weights: what foretells best the tokens of prompts that were left out."""
    prompts = np.unique(examples.prompt)
    if len(prompts) < FOLDS:
        return 0.0
    some = _some(examples, np.arange(0, len(examples.stood), 1 + len(examples.stood) // MOST_IN_FOLDS))
    fold = np.searchsorted(prompts, some.prompt) % FOLDS
    loss = np.zeros(len(TOKEN_SCALES))
    for out in range(FOLDS):
        kept, left = _some(some, fold != out), _some(some, fold == out)
        if len(set(kept.stood.tolist())) < 2:
            return 0.0
        design = _Design(kept, np.where(kept.visited, 1.0, UNVISITED))
        for row, scale in enumerate(TOKEN_SCALES):
            signed = np.where(left.stood, -1.0, 1.0) * design.fit(scale).logits(left)
            loss[row] += (np.logaddexp(0.0, signed) * np.where(left.visited, 1.0, UNVISITED)).sum()
    return TOKEN_SCALES[int(loss.argmin())]


def _some(examples: TailExamples, rows: NDArray[Any]) -> TailExamples:
    return TailExamples(*(column[rows] for column in examples))


def _common(tokens: Ints) -> Ints:
    """Tokens of which there are enough examples to learn something of each."""
    values, counts = np.unique(tokens[tokens >= 0], return_counts=True)
    return values[counts >= LEAST_EXAMPLES]


def _indicators(tokens: Ints, common: Ints) -> Any:
    """``[n, len(common)]``, sparse: which of the common tokens each one is, if any."""
    at = np.searchsorted(common, tokens)
    rows = np.flatnonzero(np.append(common, -1)[at] == tokens)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, at[rows])), shape=(len(tokens), len(common)))


def tail_examples(trace: Trace, stopping: StoppingNumbers, done: Appended | None) -> TailExamples:
    """One example for each token that the text foretells after tokens that all stand."""
    view, runs = text_view(trace), text_runs(trace)
    foretold, suffix = continuations_of(view), columns_of(view).suffix
    run, models, caps = np.log1p(suffix.run), AcceptanceModels(stopping), draft_caps(trace)
    stand, prompt = np.ones(trace.positions), prompt_of_rows(trace)
    parts = []
    for state in states(view):
        depth = state.depth
        if depth:
            stand = stand * models.all_stand(state)
        reached = (trace.accepted >= depth) & (caps >= depth)
        appends = np.zeros(trace.positions, np.bool_) if done is None else done.tail & (done.kept == depth)
        before = tokens_before(state.token, foretold[depth].token)
        for offset in range(trace.gamma_max - depth):
            cell = foretold[depth].cell[:, offset].astype(np.int64)
            rows = np.flatnonzero(reached & (runs[:, depth] >= offset) & (cell > 0))
            if not len(rows):
                break
            columns = state.token, stand, state.agreed, state.disagreed, suffix.habit, run
            tail_states = TailState(depth, *(column[rows] for column in columns))
            both = match_terms(cell[rows]), shared_terms(tail_states, offset + 1)
            terms = spread_design(both, (cell[rows] >> CODE_BITS) - 1, ORDER)  # a match is of one token at least
            token = foretold[depth].token[rows, offset].astype(np.int64)
            stood = runs[rows, depth] > offset
            parts.append(TailExamples(terms, token, before[rows, offset], prompt[rows], stood, appends[rows]))
    if not parts:
        width = ORDER * len(TailByOrder._fields) + len(TailShared._fields)
        none, nowhere = np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return TailExamples(np.zeros((0, width)), none, none, none, nowhere, nowhere)
    return _thinned(_joined(parts))


def _joined(parts: Sequence[TailExamples]) -> TailExamples:
    return TailExamples(*map(np.concatenate, zip(*parts, strict=True)))


def _thinned(examples: TailExamples) -> TailExamples:
    """All that were visited, and of the others as many as are still manageable."""
    others = np.flatnonzero(~examples.visited)
    others = others[:: max(1, len(others) // MOST_EXAMPLES)]
    rows = np.concatenate([np.flatnonzero(examples.visited), others])
    return _some(examples, rows)
