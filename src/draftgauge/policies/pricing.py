"""What further tokens of a draft cost, in tokens: seconds of a cost curve times the rate that decoding reaches.

Decoding is a renewal-reward process: steps commit tokens and take seconds, and the rate to be maximised is the ratio of
the sums. For a rate ``lambda`` the best rule maximises ``E[tokens] - lambda E[seconds]`` of a step. The best rate makes
that zero (Dinkelbach 1967, "On nonlinear fractional programming"). Here ``lambda`` is the rate of the best fixed length
at the fitted acceptance by depth. A rule that chooses well is a little faster, and 20% off costs half a percent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import isotonic_regression

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import seconds_by_length
from draftgauge.traces.costs import CostCurve


class Prices:
    """Drafting and verifying further tokens, priced for one cost curve.

    Attributes:
        rate: tokens a second.
        verify: ``[gamma_max + 1]`` price of verifying 0, 1, ... looked-up tokens in a step that drafts nothing.
        thresholds: ``[gamma_max]`` chance of the next token, with all before it, above which drafting it pays.
    """

    def __init__(self, costs: CostCurve, reads: Reads, accepted_by_depth: Sequence[float]) -> None:
        """Price drafts of as many tokens as ``accepted_by_depth``, see ``StoppingNumbers``."""
        gamma_max = len(accepted_by_depth)
        draft = isotonic_regression(seconds_by_length(costs, gamma_max, reads)).x
        verify = isotonic_regression(seconds_by_length(costs, gamma_max, NO_SIGNALS, text=True)).x
        expected = np.cumsum([1.0, *np.cumprod(accepted_by_depth)])
        self.rate = float((expected / draft).max())
        self.verify: list[float] = (self.rate * verify).tolist()
        self._ahead: list[list[tuple[float, float]]] = []
        for drafted in range(gamma_max):
            tokens = np.cumsum([1.0, *np.cumprod(accepted_by_depth[drafted + 1 :])])
            prices = self.rate * (draft[drafted + 1 :] - draft[drafted])
            self._ahead.append(list(zip(tokens.tolist(), prices.tolist(), strict=True)))
        self.thresholds = [min(price / tokens for tokens, price in ahead) for ahead in self._ahead]

    def worth_of_drafting(self, drafted: int, chance: float) -> float:
        """Tokens gained less their price, by drafting on after ``drafted`` tokens for as long as is best.

        Args:
            drafted: tokens so far, below ``gamma_max``.
            chance: that the next token and all before it are accepted.
        """
        return max(chance * tokens - price for tokens, price in self._ahead[drafted])
