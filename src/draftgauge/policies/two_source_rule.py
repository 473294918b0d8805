"""The rule of two sources for one rate: its numbers, prices and choices, and the rate itself.

:mod:`draftgauge.policies.two_source` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.acceptance_model import StoppingNumbers
from draftgauge.policies.acceptance_model import cut as cut_stopping
from draftgauge.policies.stopping import dinkelbach, look_ahead
from draftgauge.policies.tail_model import TailNumbers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TwoSourceNumbers:
    """What is fitted.

    Attributes:
        stopping: the two models of the drafter's acceptance, and kept steps: ``chances`` and ``accepted`` of these.
        tail: the model of the text's acceptance.
        kappa: how many times the tail's worth drafting on must be worth.
        tails: ``[n][gamma_max + 1][..]`` at the kept steps the chances that all tokens up to each offset of the tail
            stand, after each number of drafted ones; offsets whose chance is small are left out.
        runs: ``[n][gamma_max + 1]`` how many tokens of the tail stood there, where all drafted ones did.
        sources: ask both, or the ``model`` or the ``text`` alone.
        price: of verifying a looked-up token, as a multiple of what it costs.
        committed_seconds: what growing the index takes by a committed token.
        instead: weights of :class:`Instead`; without them every drafted token is verified.
    """

    stopping: StoppingNumbers
    tail: TailNumbers
    kappa: float = 1.0
    tails: tuple[tuple[tuple[float, ...], ...], ...] = ()
    runs: tuple[tuple[int, ...], ...] = ()
    sources: Literal["both", "model", "text"] = "both"
    price: float = 1.0
    committed_seconds: float = 0.0
    instead: tuple[float, ...] = ()


class Choices(NamedTuple):
    """What a rule does at ``n`` positions: tokens drafted and appended, ``[n]`` each."""

    drafted: Ints
    appended: Ints


class Instead(NamedTuple):
    """The terms of the chance that the token which the text foretells stands where the drafter has drafted another one;
    also their weights.

    ``text`` and ``draft`` are the logits of either chance where nothing is known of the other.
    """

    one: Any
    text: Any
    draft: Any


MOST_LOGIT = 25.0


def logit(chance: Any) -> Any:
    """The logits of chances ``[n]``, held within what their differences can be told of."""
    with np.errstate(divide="ignore"):
        return np.clip(np.log(chance) - np.log1p(-chance), -MOST_LOGIT, MOST_LOGIT)


def instead_chance(numbers: Sequence[float], terms: Instead) -> Any:
    """The chance that a looked-up token stands in place of a drafted one."""
    return 1 / (1 + np.exp(-sum(weight * term for weight, term in zip(numbers, terms, strict=True))))


class TailSums(NamedTuple):
    """What tails bring at ``n`` positions.

    Attributes:
        running: ``[n, offsets]`` tokens that a tail up to each offset brings, minus infinity from where there is none.
        total: ``[n]`` that the longest one brings.
    """

    running: Floats
    total: Floats


class Rule:
    """When to draft on and when to append, for one rate.

    Attributes:
        prices: entry ``j`` holds ``lambda (V(j + n) - V(j))`` for ``n = 0 ..``.
        least: entry ``k`` is the chance below which no further token of a tail can pay once ``k`` tokens are verified.
        lines: entry ``j`` holds pairs ``(A, price)``: drafting on is worth the greatest ``S_j m_j A - price``.
        worthless: entry ``j`` is the greatest ``S_j m_j`` at which drafting on is worth nothing, for ``j = 0 ..
            gamma_max``.
    """

    def __init__(self, rate: float, draft: Floats, verify: Floats, numbers: TwoSourceNumbers) -> None:
        """Price everything.

        Args:
            rate: tokens a second.
            draft: ``[gamma_max + 1]`` seconds of a step by tokens drafted.
            verify: ``[gamma_max + 1]`` seconds of one that drafts nothing, by tokens verified.
            numbers: the fitted ones.
        """
        self.gamma_max = gamma_max = len(draft) - 1
        self.kappa = numbers.kappa
        dear = rate * numbers.price * verify
        self.prices: list[list[float]] = [(dear[depth:] - dear[depth]).tolist() for depth in range(gamma_max + 1)]
        slopes = [
            min(((dear[more] - dear[depth]) / (more - depth) for more in range(depth + 1, gamma_max + 1)), default=2.0)
            for depth in range(gamma_max + 1)
        ]
        self.least: list[float] = [float(slope) for slope in slopes]
        onward, horizon = numbers.stopping.onward, numbers.stopping.horizon
        self.lines = [_upper_lines(look_ahead(rate, draft, onward, horizon, depth)) for depth in range(gamma_max)]
        self.texts, self.models = numbers.sources != "model", numbers.sources != "text"
        never = [math.inf]
        self.worthless: list[float] = [
            min(price / slope for slope, price in lines) if self.models else math.inf for lines in self.lines
        ] + never

    def advantage(self, depth: int, chance: float) -> float:
        """``M_j`` at one position, from ``S_j m_j``."""
        return max([slope * chance - price for slope, price in self.lines[depth]])

    def advantages(self, depth: int, chances: Floats) -> Floats:
        """``M_j`` at many, ``[n]``."""
        (slope, price), *others = self.lines[depth]
        values = slope * chances - price
        for slope, price in others:
            np.maximum(values, slope * chances - price, out=values)
        return values

    def best_tails(self, depth: int, sums: TailSums, rows: Ints) -> tuple[Floats, Ints]:
        """``G_j`` and the tail's length at some of the positions, ``[n]`` each."""
        best, lengths = np.zeros(len(rows)), np.zeros(len(rows), np.int64)
        prices = self.prices[depth][1:]
        if self.texts and prices:
            some = np.flatnonzero(sums.total[rows] > prices[0])  # what the longest one brings, for the least price
            worth = sums.running[rows[some], : len(prices)] - prices
            length = worth.argmax(axis=1)
            best[some] = np.maximum(worth[np.arange(len(some)), length], 0.0)
            lengths[some] = np.where(best[some] > 0, length + 1, 0)
        return best, lengths

    def choose(self, chances: Floats, sums: Sequence[TailSums]) -> Choices:
        """What to do at many positions.

        Args:
            chances: ``[n, gamma_max]`` ``S_j m_j``.
            sums: entry ``j`` is of ``gamma_max - j`` offsets.
        """
        count = len(chances)
        drafted, appended, rows = np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
        for depth in range(self.gamma_max + 1):
            goes_on = np.zeros(len(rows), np.bool_)
            advantage = np.zeros(len(rows))
            if depth < self.gamma_max and self.models:
                chance = chances[rows, depth]
                advantage = self.advantages(depth, chance)
                goes_on = chance > self.worthless[depth]
            # Where drafting on is worth more than any tail can be, the tail need not be known.
            matters = np.flatnonzero(~goes_on | (self.kappa * sums[depth].total[rows] >= advantage))
            worth, length = self.best_tails(depth, sums[depth], rows[matters])
            goes_on[matters] &= (worth == 0) | (advantage[matters] > self.kappa * worth)
            stays = ~goes_on[matters]
            drafted[rows[matters[stays]]], appended[rows[matters[stays]]] = depth, length[stays]
            rows = rows[goes_on]
            if not len(rows):
                break
        return Choices(drafted, appended)


def _upper_lines(lines: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The lines ``slope x - price`` that are the greatest at some chance ``x`` in 0..1."""
    kept: list[tuple[float, float]] = []
    for slope, price in sorted(lines):
        while kept and (
            price <= kept[-1][1] or (len(kept) > 1 and _meet(kept[-2], (slope, price)) <= _meet(kept[-2], kept[-1]))
        ):
            kept.pop()
        if not kept or _meet(kept[-1], (slope, price)) < 1:
            kept.append((slope, price))
    return kept


def _meet(lower: tuple[float, float], higher: tuple[float, float]) -> float:
    """The chance from which on the steeper line is the greater one."""
    rise = higher[0] - lower[0]
    return (higher[1] - lower[1]) / rise if rise > 0 else math.inf


def best_rate(numbers: TwoSourceNumbers, draft: Floats, verify: Floats) -> float:
    """The best rate of the rule on the kept steps, see :func:`~draftgauge.policies.stopping.dinkelbach`."""
    gamma_max = len(draft) - 1
    chances, accepted = np.asarray(numbers.stopping.chances), np.asarray(numbers.stopping.accepted, np.int64)
    sums = [
        running_sums(_padded([step[depth] for step in numbers.tails], gamma_max - depth))
        for depth in range(gamma_max + 1)
    ]
    runs = np.asarray(numbers.runs, np.int64)

    def reached(rate: float) -> float:
        drafted, appended = Rule(rate, draft, verify, numbers).choose(chances, sums)
        stood = np.where(accepted >= drafted, np.minimum(appended, runs[np.arange(len(runs)), drafted]), 0)
        tokens = np.minimum(drafted, accepted) + stood + 1
        seconds = draft[drafted] + verify[drafted + appended] - verify[drafted]
        return float(tokens.sum() / seconds.sum())

    return dinkelbach(1 / float(verify[0]), reached)


def cut(numbers: TwoSourceNumbers, gamma_max: int) -> TwoSourceNumbers:
    """The same for shorter drafts than those fitted."""
    tails = tuple(
        tuple(tail[: gamma_max - depth] for depth, tail in enumerate(step[: gamma_max + 1])) for step in numbers.tails
    )
    runs = tuple(tuple(step[: gamma_max + 1]) for step in numbers.runs)
    return replace(numbers, stopping=cut_stopping(numbers.stopping, gamma_max), tails=tails, runs=runs)


def _padded(rows: Sequence[Sequence[float]], length: int) -> Floats:
    padded = np.zeros((len(rows), length))
    for row, values in enumerate(rows):
        padded[row, : len(values)] = values
    return padded


def running_sums(gains: Floats) -> TailSums:
    """Sums of gains ``[n, offsets]``, chances that all tokens up to each offset stand (0 where there is no token)."""
    return TailSums(np.where(gains > 0, np.cumsum(gains, axis=1), -np.inf), gains.sum(axis=1))
