"""Stopping by a fitted continuation value: least-squares Monte Carlo on a dense trace.

A dense trace holds what every rule would have earned at every position, so the value of going on can be regressed
directly, backwards in depth (Longstaff and Schwartz 2001, "Valuing American options by simulation"): at depth ``j`` the
gain of drafting on and stopping later as found so far, over stopping now, is regressed on the state, and the rule goes
on where the regression is above zero. It needs a regression for every cost curve and rate, where
:mod:`draftgauge.policies.stopping` needs none; it is here to be compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from draftgauge.fitting.stopping import next_design, next_stand_chances
from draftgauge.policies.acceptance_model import StoppingNumbers, decision_seconds, states
from draftgauge.policies.stopping import ThroughputStopping, deciding_seconds
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import Charge, Replay, replay_lengths
from draftgauge.replaying.views import text_view
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REGULARISATION = 10.0
ROUNDS = 4  # of Dinkelbach's iteration


@dataclass(frozen=True)
class ContinuationValues:
    """One regression for each depth, for one cost curve, at the rate that its own rule reaches.

    Attributes:
        numbers: the models of acceptance whose chances are part of the state.
        values: ``gamma_max`` regressions of the gain of drafting on after ``j`` tokens.
        rate: tokens a second.
    """

    numbers: StoppingNumbers
    values: tuple[Ridge, ...]
    rate: float

    def lengths(self, trace: Trace) -> Ints:
        """``[P]`` draft length at every position."""
        pairs = zip(self.values, state_terms(self.numbers, trace), strict=True)
        goes_on = [value.predict(terms) > 0 for value, terms in pairs]
        stops = ~np.stack([*goes_on, np.zeros(trace.positions, np.bool_)], axis=1)
        lengths: Ints = stops.argmax(axis=1)
        return lengths

    def replay(self, trace: Trace, costs: CostCurve) -> Replay:
        """The rule on a trace, charged for its signals as :class:`ThroughputStopping` is."""
        charge = Charge(ThroughputStopping.reads, decision_seconds(self.numbers))
        return replay_lengths(trace, self.lengths(trace), costs, charge)


def fit_continuation(trace: Trace, costs: CostCurve, numbers: StoppingNumbers) -> ContinuationValues:
    """Regress continuation values on a trace, for one cost curve."""
    seconds = deciding_seconds(costs, trace.gamma_max, decision_seconds(numbers))
    terms, caps = state_terms(numbers, trace), draft_caps(trace)
    rule = ContinuationValues(numbers, (), 1 / float(seconds[0]))
    for _ in range(ROUNDS):
        values = _backwards(terms, trace.accepted.astype(np.int64), caps, seconds, rule.rate)
        rule = ContinuationValues(numbers, values, rule.rate)
        rate = rule.replay(trace, costs).tokens_per_second
        rule = ContinuationValues(numbers, values, rate)
    return rule


def _backwards(terms: list[Floats], accepted: Ints, caps: Ints, seconds: Floats, rate: float) -> tuple[Ridge, ...]:
    """Regressions by depth, from the last one backwards; ``stop`` is where the rules so far would end each draft."""
    gamma_max = len(terms)
    stop = np.full(len(accepted), gamma_max)
    values: list[Ridge] = []
    for depth in range(gamma_max - 1, -1, -1):
        gain = np.minimum(stop, accepted) - np.minimum(depth, accepted) - rate * (seconds[stop] - seconds[depth])
        drafts = caps > depth
        value = Ridge(alpha=REGULARISATION).fit(terms[depth][drafts], gain[drafts])
        stop = np.where(value.predict(terms[depth]) > 0, stop, depth)
        values.append(value)
    return tuple(reversed(values))


def state_terms(numbers: StoppingNumbers, trace: Trace) -> list[Floats]:
    """Basis functions ``[P, K]`` of the states at depth ``0 .. gamma_max - 1``."""
    terms = []
    for chances, state in zip(next_stand_chances(numbers, trace).T, states(text_view(trace)), strict=False):
        chance, design = chances[:, None], next_design(state)
        terms.append(np.concatenate([chance, chance**2, np.sqrt(chance), design, chance * design], axis=1))
    return terms
