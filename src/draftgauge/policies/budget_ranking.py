"""Which tokens of a step pay, ranked over the requests of a batch: the budget of
:mod:`draftgauge.policies.shared_budget` without the chances that it goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

KEEPS = 0.98  # of what was reached before, at every step: the rate follows the last fifty


class PassCosts(Protocol):
    """What must be known of a batch's passes; :class:`~draftgauge.traces.batch_costs.BatchCosts` is one."""

    @property
    def gamma_max(self) -> int:
        """The longest draft measured."""
        ...

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths measured at, increasing."""
        ...

    def verify_seconds(self, batch: int, tokens: NDArray[np.int64] | int, context: int) -> NDArray[np.float64]:
        """Seconds of verifying ``tokens`` tokens."""
        ...

    def draft_seconds(
        self, batch: NDArray[np.int64] | int, tokens: NDArray[np.int64] | int, context: int
    ) -> NDArray[np.float64]:
        """Seconds of the drafter's first pass of a step."""
        ...

    def onward_seconds(self, batch: NDArray[np.int64] | int, context: int) -> NDArray[np.float64]:
        """Seconds of each later one."""
        ...

    def asking_seconds(self, batch: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """What reading signals adds to it."""
        ...

    def step_seconds(self, batch: NDArray[np.int64] | int) -> NDArray[np.float64]:
        """Seconds of a step outside its passes."""
        ...


class _Prices:
    """The costs at one context length, as lists: looked up many times a step."""

    def __init__(self, costs: PassCosts, batch: int, context: int) -> None:
        requests = np.arange(1, batch + 1)
        tokens = np.arange(batch, batch * (costs.gamma_max + 1) + 1)
        asking = costs.asking_seconds(requests)
        self.verify: list[float] = costs.verify_seconds(batch, tokens, context).tolist()
        """Verification, by tokens beyond one of each request."""
        self.draft: list[float] = [0.0, *(costs.draft_seconds(requests, requests, context) + asking).tolist()]
        """A step's first draft pass, by requests, each reading one new token."""
        self.draft_two: list[float] = [0.0, *(costs.draft_seconds(requests, 2 * requests, context) + asking).tolist()]
        """Likewise, each reading two new tokens."""
        self.onward: list[float] = [0.0, *(costs.onward_seconds(requests, context) + asking).tolist()]
        """A later draft pass, by requests."""


class BudgetRanking:
    """Ranks the tokens of one step after another, and says which of them pay."""

    def __init__(self, costs: PassCosts, batch: int) -> None:
        """Start a ranking for up to ``batch`` requests."""
        self._costs, self._batch = costs, batch
        self._prices: dict[int, _Prices] = {}
        self._prices_at: dict[int, _Prices] = {}
        self._rest: list[float] = [0.0, *costs.step_seconds(np.arange(1, batch + 1)).tolist()]
        self._longest = costs.gamma_max * batch
        self._planned = 0
        self._spent = self._price(costs.contexts[0]).verify[0] + self._rest[batch]
        self._tokens, self._seconds = float(batch), self._spent  # as without drafts

    @property
    def rate(self) -> float:
        """Committed tokens a second, of the whole batch, as reached lately."""
        return self._tokens / self._seconds

    def begin(self, requests: int, context: int) -> None:
        """Begin a step of some requests, the longest of ``context`` tokens."""
        self._now = self._price(context)
        self._planned = 0
        self._spent = self._rest[requests]

    def admitted(self, chances: Mapping[int, float], backlog: Mapping[int, int] | None) -> list[int]:
        """The requests that draft a token now: the first of the ranking that pay together.

        Args:
            chances: of those that may, that their next token stands with all before it.
            backlog: what each takes in, in the first pass of a step; None later.
        """
        ranked = sorted(chances, key=lambda slot: -chances[slot])[: self._longest - self._planned]
        best, worth, gain, fed, price = 0, 0.0, 0.0, 0, 0.0
        for count, slot in enumerate(ranked, start=1):
            gain += chances[slot]
            if backlog is None:
                pass_ = self._now.onward[count]
            else:
                fed += min(backlog[slot], 2)
                more = (fed / count - 1) * (self._now.draft_two[count] - self._now.draft[count])
                pass_ = self._now.draft[count] + more
            seconds = pass_ + self._now.verify[self._planned + count] - self._now.verify[self._planned]
            if gain - self.rate * seconds > worth:
                best, worth, price = count, gain - self.rate * seconds, pass_
        self._planned += best
        self._spent += price
        return sorted(ranked[:best])

    def verified(self, stands: Mapping[int, Sequence[float]]) -> dict[int, int]:
        """As many of the drafted tokens, the likeliest first, as pay for their verification.

        Args:
            stands: by request, the chances that its drafted tokens stand, one after the other.
        """
        ranked = sorted(((stand, slot) for slot, own in stands.items() for stand in own), reverse=True)
        rate, seconds = self.rate, self._now.verify
        best, gain, worth = 0, 0.0, -rate * seconds[0]
        for count, (stand, _) in enumerate(ranked, start=1):
            gain += stand
            if gain - rate * seconds[count] > worth:
                best, worth = count, gain - rate * seconds[count]
        counts = dict.fromkeys(stands, 0)
        for _, slot in ranked[:best]:
            counts[slot] += 1
        self._spent += seconds[best]
        self._tokens, self._seconds = KEEPS * self._tokens, KEEPS * self._seconds + self._spent
        return counts

    def committed(self, tokens: int) -> None:
        """Note that a request committed some tokens."""
        self._tokens += tokens

    def _price(self, context: int) -> _Prices:
        """The costs at the nearest context length that was measured."""
        if context not in self._prices_at:
            measured = self._costs.contexts
            node = min(range(len(measured)), key=lambda i: abs(measured[i] - context))
            if node not in self._prices:
                self._prices[node] = _Prices(self._costs, self._batch, measured[node])
            self._prices_at[context] = self._prices[node]
        return self._prices_at[context]
