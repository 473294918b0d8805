"""Throughput-optimal stopping: draft the next token while its chance to be accepted is worth its time.

``S_j`` is the chance that all of ``j`` drafted tokens are accepted, ``r_j`` how often the next one is where they are.
Drafting ``i`` more gains ``S_j A_ji`` tokens and costs ``T(j + i) - T(j)`` seconds. ``A_ji`` is
``r_j + r_j r_j+1 + ...``, less what rolling a recurrent state back is expected to cost. So drafting goes on while

    ``S_j > theta_j = min over i of lambda (T(j + i) - T(j)) / A_ji``

(:mod:`draftgauge.policies.pricing` has ``lambda``). ``S_j`` is the product of the drafter's confidences after Platt
scaling: a logistic function of the logit of each. The cost curve alone decides ``theta`` and ``lambda``, so a policy
fitted on one target serves another compression, machine or engine.

What does not help on held-out prompts of the bundled pair: entropy, margin, depth, the worst and previous confidence,
the token's identity. Each is within 0.3 points of gain at three compressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Signal, SignalArrays, first_stop
from draftgauge.policies.checks import check_shares, require_costs
from draftgauge.policies.fitted import bundled_policy, register_fitted, to_depth
from draftgauge.policies.pricing import Prices
from draftgauge.policies.registry import register_policy
from draftgauge.traces.costs import CostCurve

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
