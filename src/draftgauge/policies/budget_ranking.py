"""Which tokens of a step pay, ranked over the requests of a batch: the budget of
:mod:`draftgauge.policies.shared_budget` without the chances that it goes by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftgauge.policies.base import DecisionSeconds

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

    def ragged_verify_seconds(self, batch: int, padded: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds that so many places of padding add to verification."""
        ...

    def ranking_seconds(self, batch: int, steps: int, ranked: int) -> float:
        """Seconds of ranking in some steps, with so many rankings of a request in all."""
        ...


class _Prices:
    """The costs at one context length, as lists: looked up many times a step."""

    def __init__(self, costs: PassCosts, batch: int, context: int, deciding: float) -> None:
        """Tabulate, ``deciding`` being the seconds that a drafted token takes besides its passes."""
        requests = np.arange(1, batch + 1)
        tokens = np.arange(batch, batch * (costs.gamma_max + 1) + 1)
        besides = costs.asking_seconds(requests) + deciding * requests
        measured = costs.verify_seconds(batch, tokens, context)
        self.verify: list[float] = isotonic_regression(measured).x.tolist()
        """Verification, by tokens beyond one of each request; more take no less time."""
        self.draft: list[float] = [0.0, *(costs.draft_seconds(requests, requests, context) + besides).tolist()]
        """A step's first draft pass, by requests, each reading one new token."""
        self.draft_two: list[float] = [0.0, *(costs.draft_seconds(requests, 2 * requests, context) + besides).tolist()]
        """Likewise, each reading two new tokens."""
        self.onward: list[float] = [0.0, *(costs.onward_seconds(requests, context) + besides).tolist()]
        """A later draft pass, by requests."""


class BudgetRanking:
    """Ranks the tokens of one step after another, and says which of them pay."""

    def __init__(
        self, costs: PassCosts, batch: int, ahead: Sequence[Sequence[float]], decision: DecisionSeconds
    ) -> None:
        """Start a ranking.

        Args:
            costs: of passes.
            batch: the most requests at once.
            ahead: entry ``j`` is of :func:`~draftgauge.policies.stopping.tokens_ahead`, for ``j = 0 .. gamma_max - 1``.
            decision: what the chances take, for each request.
        """
        self._costs, self._batch, self._ahead = costs, batch, ahead
        self._deciding = decision.token + costs.ranking_seconds(batch, 0, 1)
        self._prices: dict[int, _Prices] = {}
        self._prices_at: dict[int, _Prices] = {}
        requests = np.arange(1, batch + 1)
        once = costs.ranking_seconds(batch, 1, 0)
        each = decision.step + costs.ranking_seconds(batch, 0, 1)
        self._rest: list[float] = [0.0, *(costs.step_seconds(requests) + once + each * requests).tolist()]
        self._longest = costs.gamma_max * batch
        self._ragged: list[float] = costs.ragged_verify_seconds(batch, np.arange(self._longest + 1)).tolist()
        self._depth = self._planned = 0
        self._spent = self._price(costs.contexts[0]).verify[0] + self._rest[batch]
        self._tokens, self._seconds = float(batch), self._spent  # as without drafts

    @property
    def rate(self) -> float:
        """Committed tokens a second, of the whole batch, as reached lately."""
        return self._tokens / self._seconds

    def begin(self, requests: int, context: int) -> None:
        """Begin a step of some requests, the longest of ``context`` tokens."""
        self._now = self._price(context)
        self._requests = requests
        self._depth = self._planned = 0
        self._spent = self._rest[requests]

    def admitted(self, chances: Mapping[int, float], backlog: Mapping[int, int] | None) -> list[int]:
        """The requests that draft a token now: the first of the ranking that pay together.

        Args:
            chances: of those that may, that their next token stands with all before it.
            backlog: what each takes in, in the first pass of a step; None later.
        """
        ranked = sorted(chances, key=lambda slot: -chances[slot])[: self._longest - self._planned]
        now, rate, planned, ragged = self._now, self.rate, self._planned, self._ragged
        verify, ahead = now.verify, self._ahead[self._depth]
        missing = self._requests * self._depth - planned  # tokens that would make all drafts as long as the longest
        verified = verify[planned] + ragged[missing]
        best, worth, gain, fed, price = 0, 0.0, 0.0, 0, 0.0
        for count, slot in enumerate(ranked, start=1):
            gain += chances[slot]
            onward, others = now.onward[count], self._requests - count
            if backlog is None:
                pass_ = onward
            else:
                fed += min(backlog[slot], 2)
                more = (fed / count - 1) * (now.draft_two[count] - now.draft[count])
                pass_ = now.draft[count] + more
            drafting, total, padded = pass_ - verified, planned, missing
            for tokens in ahead:
                total += count
                padded += others
                value = gain * tokens - rate * (drafting + verify[total] + ragged[padded])
                if value > worth:
                    best, worth, price = count, value, pass_
                drafting += onward
        self._depth += 1
        self._planned += best
        self._spent += price
        return sorted(ranked[:best])

    def verified(self, stands: Mapping[int, Sequence[float]]) -> dict[int, int]:
        """As many of the drafted tokens, the likeliest first, as pay for their verification.

        Args:
            stands: by request, the chances that its drafted tokens stand, one after the other.
        """
        ranked = sorted(((stand, slot) for slot, own in stands.items() for stand in own), reverse=True)
        rate, verify, ragged = self.rate, self._now.verify, self._ragged
        counts, longest = dict.fromkeys(stands, 0), 0
        best, gain, worth, seconds = 0, 0.0, -rate * verify[0], verify[0]
        for count, (stand, slot) in enumerate(ranked, start=1):
            gain += stand
            counts[slot] += 1
            longest = max(longest, counts[slot])
            now = verify[count] + ragged[len(counts) * longest - count]
            if gain - rate * now > worth:
                best, worth, seconds = count, gain - rate * now, now
        for _, slot in ranked[best:]:
            counts[slot] -= 1
        self._spent += seconds
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
                self._prices[node] = _Prices(self._costs, self._batch, measured[node], self._deciding)
            self._prices_at[context] = self._prices[node]
        return self._prices_at[context]
