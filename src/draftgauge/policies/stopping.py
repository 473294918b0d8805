"""Throughput-optimal stopping: draft the next token while its chance to be accepted is worth its time.

``S_j`` is the chance that all of ``j`` drafted tokens are accepted, ``r_j`` how often the next one is where they are.
Drafting ``i`` more gains ``S_j A_ji`` tokens and costs ``T(j + i) - T(j)`` seconds. ``A_ji`` is
``r_j + r_j r_j+1 + ...``, less what rolling a recurrent state back is expected to cost. So drafting goes on while

    ``S_j > theta_j = min over i of lambda (T(j + i) - T(j)) / A_ji``

(:class:`Prices` has ``lambda``). ``S_j`` is the product of the drafter's confidences after Platt
scaling: a logistic function of the logit of each. The cost curve alone decides ``theta`` and ``lambda``, so a policy
fitted on one target serves another compression, machine or engine.

What does not help on held-out prompts of the bundled pair: entropy, margin, depth, the worst and previous confidence,
the token's identity. Each is within 0.3 points of gain at three compressions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.policies.base import (
    Policy,
    PolicyBase,
    Signal,
    SignalArrays,
    check_shares,
    first_stop,
    require_costs,
    seconds_by_length,
)
from draftgauge.policies.fitted import bundled_policy, register_fitted
from draftgauge.policies.spec import register_policy
from draftgauge.traces.costs import CostCurve


class Prices:
    """Drafting and verifying further tokens, priced in tokens: seconds of a cost curve times the rate of decoding.

    Decoding is a renewal-reward process: steps commit tokens and take seconds, and the rate to be maximised is the
    ratio of the sums. For a rate ``lambda`` the best rule maximises ``E[tokens] - lambda E[seconds]`` of a step. The
    best rate makes that zero (Dinkelbach 1967, "On nonlinear fractional programming"). Here ``lambda`` is the rate of
    the best fixed length at the fitted acceptance by depth. A rule that chooses well is a little faster, and 20% off
    costs half a percent.

    Costs are taken as they were measured: where one token more makes a pass jump or fall, so does its price.

    Attributes:
        rate: tokens a second.
        verify: ``[gamma_max + 1]`` price of verifying 0, 1, ... looked-up tokens in a step that drafts nothing.
        rollback: ``[gamma_max]`` price of rolling recurrent states back where 0, 1, ... tokens are accepted.
        thresholds: ``[gamma_max]`` chance that all tokens so far are accepted, above which drafting the next one pays.
    """

    def __init__(self, costs: CostCurve, reads: Reads, accepted_by_depth: Sequence[float]) -> None:
        """Price drafts of as many tokens as ``accepted_by_depth``, see ``StoppingNumbers``."""
        gamma_max = len(accepted_by_depth)
        draft = seconds_by_length(costs, gamma_max, reads)
        rollback = costs.rollback_seconds(gamma_max, np.arange(gamma_max))  # where so many are accepted

        def ahead(drafted: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            """Tokens, and seconds of rolling back, expected of the next 1, 2, ... where all so far are accepted."""
            accepted = np.cumprod([1.0, *accepted_by_depth[drafted:]])
            return np.cumsum(accepted[1:]), np.cumsum((accepted[:-1] - accepted[1:]) * rollback[drafted:])

        tokens, back = ahead(0)
        self.rate = float((np.append(1.0, 1.0 + tokens) / (draft + np.append(0.0, back))).max())
        self.verify: list[float] = (self.rate * seconds_by_length(costs, gamma_max, NO_SIGNALS, text=True)).tolist()
        self.rollback: list[float] = (self.rate * rollback).tolist()
        self._ahead: list[list[tuple[float, float]]] = []
        for drafted in range(gamma_max):
            tokens, back = ahead(drafted)
            prices = self.rate * (draft[drafted + 1 :] - draft[drafted])
            self._ahead.append(list(zip((tokens - self.rate * back).tolist(), prices.tolist(), strict=True)))
        self.thresholds = [  # the chance at which tokens are worth their price
            min(price / gained if gained > 0 else math.copysign(math.inf, price) for gained, price in ahead)
            for ahead in self._ahead
        ]

    def worth_of_drafting(self, drafted: int, accepted: float) -> float:
        """Tokens gained less their price, by drafting on after ``drafted`` tokens for as long as is best.

        Args:
            drafted: tokens so far, below ``gamma_max``.
            accepted: chance that all of them are accepted.
        """
        return max(accepted * gained - price for gained, price in self._ahead[drafted])


STOPPING = "stopping"
SIGNALS = ("logit_confidence",)
LEAST, MOST = 1e-6, 1 - 1e-4  # confidences beyond count as these: their logits say no more


@dataclass(frozen=True)
class StoppingNumbers:
    """What is fitted.

    Attributes:
        constant, logit_confidence: of the logistic function from the drafter's confidence in a token to the chance that
            it is accepted where those before it are.
        accepted_by_depth: ``[gamma_max]`` how often the token at each depth is accepted where those before it are.
    """

    constant: float
    logit_confidence: float
    accepted_by_depth: tuple[float, ...]


def logit(confidence: Any) -> Any:
    held = np.clip(confidence, LEAST, MOST)
    return np.log(held / (1 - held))


class ThroughputStopping(PolicyBase):
    """Draft while the next token's chance to be accepted is worth its time; see :mod:`draftgauge.policies.stopping`."""

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE})

    def __init__(self, numbers: StoppingNumbers, costs: CostCurve) -> None:
        self.numbers = numbers
        self.gamma_max = len(numbers.accepted_by_depth)
        self.prices = Prices(costs, self.reads, numbers.accepted_by_depth)
        self._least = np.array(self.prices.thresholds)  # drafting goes on after j tokens while S_j is above entry j
        self._all_accepted = 1.0

    def limit(self) -> int:
        self._all_accepted = 1.0
        return self.gamma_max if self._least[0] < 1 else 0

    def keep_drafting(self, signal: Signal) -> bool:
        self._all_accepted *= float(self.chance(signal.confidence))
        return bool(signal.depth < self.gamma_max and self._all_accepted > self._least[signal.depth])

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        if not self.limit():
            return np.zeros(signals.positions, np.int64)
        chances = np.cumprod(self.chance(signals.confidence.astype(np.float64)), axis=1)[:, : self.gamma_max]
        # NaN, where nothing was drafted, is not a stop: what the drafter had to propose caps the draft.
        return first_stop(chances <= np.append(self._least[1:], np.inf)[: chances.shape[1]], self.gamma_max)

    def chance(self, confidence: Any) -> Any:
        """That a token of this confidence is accepted if all before it are; NaN of NaN."""
        return 1 / (1 + np.exp(-(self.numbers.constant + self.numbers.logit_confidence * logit(confidence))))


@register_fitted(STOPPING, SIGNALS)
def _build(parameters: Mapping[str, Any], gamma_max: int, costs: CostCurve | None, _: str) -> Policy:
    known = {key: value for key, value in parameters.items() if key != "rate_scale"}  # which earlier files have
    numbers = from_mapping(StoppingNumbers, known, "policy stopping")
    check_shares(STOPPING, "accepted_by_depth", numbers.accepted_by_depth, gamma_max)
    return ThroughputStopping(numbers, require_costs(STOPPING, costs))


@register_policy(
    STOPPING,
    "drafts on while the next token's chance to be accepted is worth its time (throughput-optimal stopping)",
    complexity=4,
    compared=True,
)
def stopping(*, gamma_max: int, costs: CostCurve) -> Policy:
    numbers = from_mapping(StoppingNumbers, bundled_policy(STOPPING).parameters, "bundled policy")
    return ThroughputStopping(replace(numbers, accepted_by_depth=to_depth(numbers.accepted_by_depth, gamma_max)), costs)


def to_depth(accepted_by_depth: Sequence[float], gamma_max: int) -> tuple[float, ...]:
    """Acceptance of the bundled pair for drafts of any length: beyond its last depth it stays as it is there."""
    return (*accepted_by_depth, *[accepted_by_depth[-1]] * gamma_max)[:gamma_max]
