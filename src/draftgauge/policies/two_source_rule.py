"""The rule of two sources for one rate: its numbers, prices and choices, and the rate itself.

:mod:`draftgauge.policies.two_source` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.acceptance_model import StoppingNumbers
from draftgauge.policies.acceptance_model import cut as cut_stopping
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
        tails: ``[n][gamma_max + 1][..]`` at the kept steps the chances that all tokens up to each place of the tail
            stand, after each number of drafted ones; places whose chance is small are left out.
        runs: ``[n][gamma_max + 1]`` how many tokens of the tail stood there, where all drafted ones did.
        sources: ask both, or the ``model`` or the ``text`` alone.
        price: of verifying a looked-up token, as a multiple of what it costs.
        committed_seconds: what growing the index takes by a committed token.
    """

    stopping: StoppingNumbers
    tail: TailNumbers
    kappa: float = 1.0
    tails: tuple[tuple[tuple[float, ...], ...], ...] = ()
    runs: tuple[tuple[int, ...], ...] = ()
    sources: Literal["both", "model", "text"] = "both"
    price: float = 1.0
    committed_seconds: float = 0.0


class Choices(NamedTuple):
    """What a rule does at ``n`` positions: tokens drafted and appended, ``[n]`` each."""

    drafted: Ints
    appended: Ints


class Rule:
    """When to draft on and when to append, for one rate.

    Attributes:
        prices: entry ``j`` holds ``lambda (V(j + n) - V(j))`` for ``n = 0 ..``.
        least: entry ``k`` is the chance below which no further token of a tail can pay once ``k`` tokens are verified.
        lines: entry ``j`` holds pairs ``(A, price)``: drafting on is worth the greatest ``S_j m_j A - price``.
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
        self.lines = [_upper_lines(_lines(rate, draft, onward, horizon, depth)) for depth in range(gamma_max)]
        self.texts, self.models = numbers.sources != "model", numbers.sources != "text"

    def advantage(self, depth: int, chance: float) -> float:
        """``M_j`` at one position, from ``S_j m_j``."""
        return max([slope * chance - price for slope, price in self.lines[depth]])

    def advantages(self, depth: int, chances: Floats) -> Floats:
        """``M_j`` at many, ``[n]``."""
        slopes, prices = np.array(self.lines[depth]).T
        values: Floats = (chances[:, None] * slopes - prices).max(axis=1)
        return values

    def best_tails(self, depth: int, sums: Floats) -> tuple[Floats, Ints]:
        """``G_j`` and the tail's length at many positions, ``[n]`` each, from :func:`running_sums`, ``[n, places]``."""
        if not self.texts or not sums.shape[1]:
            return np.zeros(len(sums)), np.zeros(len(sums), np.int64)
        worth = sums - np.array(self.prices[depth][1:])
        length = worth.argmax(axis=1)
        best = worth[np.arange(len(sums)), length]
        return np.maximum(best, 0.0), np.where(best > 0, length + 1, 0)

    def choose(self, chances: Floats, sums: Sequence[Floats]) -> Choices:
        """What to do at many positions.

        Args:
            chances: ``[n, gamma_max]`` ``S_j m_j``.
            sums: entry ``j`` is ``[n, gamma_max - j]``, see :func:`running_sums`.
        """
        count = len(chances)
        drafted, appended, rows = np.zeros(count, np.int64), np.zeros(count, np.int64), np.arange(count)
        for depth in range(self.gamma_max + 1):
            worth, length = self.best_tails(depth, sums[depth][rows])
            goes_on = np.zeros(len(rows), np.bool_)
            if depth < self.gamma_max and self.models:
                goes_on = self.advantages(depth, chances[rows, depth]) > np.maximum(0.0, self.kappa * worth)
            stays = rows[~goes_on]
            drafted[stays], appended[stays] = depth, length[~goes_on]
            rows = rows[goes_on]
            if not len(rows):
                break
        return Choices(drafted, appended)


def _lines(rate: float, draft: Floats, onward: Sequence[float], horizon: int, depth: int) -> list[tuple[float, float]]:
    lines, tokens, chance = [], 0.0, 1.0
    for more in range(1, min(horizon, len(draft) - 1 - depth) + 1):
        tokens += chance
        lines.append((tokens, float(rate * (draft[depth + more] - draft[depth]))))
        chance *= onward[depth + more] if depth + more < len(draft) - 1 else 0.0
    return lines


def _upper_lines(lines: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that are the greatest ``slope x - price`` for some chance ``x`` in 0..1."""
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
    """Dinkelbach's iteration over the kept steps: the rate that the rule with its own rate reaches on them."""
    gamma_max = len(draft) - 1
    chances, accepted = np.asarray(numbers.stopping.chances), np.asarray(numbers.stopping.accepted, np.int64)
    sums = [
        running_sums(_padded([step[depth] for step in numbers.tails], gamma_max - depth))
        for depth in range(gamma_max + 1)
    ]
    runs = np.asarray(numbers.runs, np.int64)
    rate = 1 / float(verify[0])
    for _ in range(20):
        drafted, appended = Rule(rate, draft, verify, numbers).choose(chances, sums)
        stood = np.where(accepted >= drafted, np.minimum(appended, runs[np.arange(len(runs)), drafted]), 0)
        tokens = np.minimum(drafted, accepted) + stood + 1
        seconds = draft[drafted] + verify[drafted + appended] - verify[drafted]
        reached = float(tokens.sum() / seconds.sum())
        if reached <= rate * (1 + 1e-6):
            break
        rate = reached
    return rate


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


def running_sums(gains: Floats) -> Floats:
    """Sums ``[n, places]`` of gains, minus infinity where a gain is 0."""
    return np.where(gains > 0, np.cumsum(gains, axis=1), -np.inf)
