"""What further tokens of a draft cost, in tokens: seconds of a cost curve times the rate that decoding reaches.

Decoding is a renewal-reward process: steps commit tokens and take seconds, and the rate to be maximised is the ratio of
the sums. For a rate ``lambda`` the best rule maximises ``E[tokens] - lambda E[seconds]`` of a step. The best rate makes
that zero (Dinkelbach 1967, "On nonlinear fractional programming"). Here ``lambda`` is the rate of the best fixed length
at the fitted acceptance by depth. A rule that chooses well is a little faster, and 20% off costs half a percent.

Costs are taken as they were measured: where one token more makes a pass jump or fall, so does its price.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import seconds_by_length
from draftgauge.traces.costs import CostCurve


class Prices:
    """Drafting and verifying further tokens, priced for one cost curve.

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
        self.thresholds = [min(_break_even(*each) for each in ahead) for ahead in self._ahead]

    def worth_of_drafting(self, drafted: int, accepted: float) -> float:
        """Tokens gained less their price, by drafting on after ``drafted`` tokens for as long as is best.

        Args:
            drafted: tokens so far, below ``gamma_max``.
            accepted: chance that all of them are accepted.
        """
        return max(accepted * gained - price for gained, price in self._ahead[drafted])


def _break_even(gained: float, price: float) -> float:
    """The chance at which tokens are worth their price."""
    return price / gained if gained > 0 else math.copysign(math.inf, price)
