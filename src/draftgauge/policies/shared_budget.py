"""A budget of draft tokens that the requests of a batch share.

In a batch, drafts compete: a token drafted for one request takes time that another request's token could have used. So
at every depth the requests are ranked by the chance that their next token would be committed, ``S_j m_j``, and as many
of the first of them draft as raise committed tokens per second: those with

    ``sum of S_j m_j  >  rate (seconds of the pass + what verifying one more token of each takes)``.

After drafting, the drafted tokens of all requests are ranked by the chance ``S_j`` that they stand, and as many of the
first of them are verified as pay for it likewise; the chance never rises along a draft, so every request keeps a prefix
of its own. ``rate`` is what the batch has reached so far, as Dinkelbach's iteration has it (see
:mod:`draftgauge.policies.stopping`); chances come from that policy's calibrated models, seconds from costs measured
for batches.

vLLM prunes the drafts of a parallel drafter by confidence across requests (pull request 47808), SGLang likewise (pull
request 36136).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads
from draftgauge.policies.base import Policy, Signal, Step, begin, decision_of
from draftgauge.policies.batch import Opening
from draftgauge.policies.stopping import ThroughputStopping

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
        """Seconds of verifying so many tokens."""
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
        """By tokens beyond one of each request."""
        self.draft: list[float] = [0.0, *(costs.draft_seconds(requests, requests, context) + asking).tolist()]
        """A step's first pass, by requests, each taking one token in."""
        self.draft_two: list[float] = [0.0, *(costs.draft_seconds(requests, 2 * requests, context) + asking).tolist()]
        """Likewise two."""
        self.onward: list[float] = [0.0, *(costs.onward_seconds(requests, context) + asking).tolist()]
        """A later pass."""


class SharedBudget:
    """Ranks drafted tokens over the requests of a batch; see :mod:`draftgauge.policies.shared_budget`."""

    def __init__(self, policies: Sequence[Policy], costs: PassCosts) -> None:
        """Share what one policy a slot knows.

        Args:
            policies: throughput-optimal stopping, whose chances are used and whose decisions are not.
            costs: of batches of as many requests as there are policies.

        Raises:
            DraftgaugeError: for another kind of policy.
        """
        self._trackers: list[ThroughputStopping] = []
        for policy in policies:
            if not isinstance(policy, ThroughputStopping):
                raise DraftgaugeError(
                    f"a shared budget needs the chances of throughput-optimal stopping, not {type(policy).__name__}"
                )
            self._trackers.append(policy)
        self.reads: Reads = self._trackers[0].reads
        self.decision = decision_of(policies[0])
        self._costs, self._batch = costs, len(policies)
        self._prices: dict[int, _Prices] = {}
        self._prices_at: dict[int, _Prices] = {}
        self._rest: list[float] = [0.0, *costs.step_seconds(np.arange(1, self._batch + 1)).tolist()]
        self._longest = costs.gamma_max * self._batch
        self._spent = self._price(costs.contexts[0]).verify[0] + self._rest[self._batch]
        self._tokens, self._seconds = float(self._batch), self._spent  # as without drafts
        self._stands: dict[int, list[float]] = {}

    @property
    def rate(self) -> float:
        """Committed tokens a second, of the whole batch, as reached lately."""
        return self._tokens / self._seconds

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        """Reset the slot's tracker."""
        begin(self._trackers[slot], prompt_tokens)

    def first(self, opening: Opening) -> list[int]:
        """The requests whose first token is worth its time together."""
        self._now = self._price(opening.context)
        self._stands = {slot: [] for slot in opening.caps}
        self._planned = 0
        self._spent = self._rest[len(opening.caps)]
        chances = {}
        for slot, cap in opening.caps.items():
            self._trackers[slot].limit()
            if cap > 0:
                chances[slot] = self._chance(slot)
        return self._admitted(chances, opening.backlog)

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        """The requests whose next token is."""
        for slot, signal in drafted.items():
            self._track(slot, signal)
        return self._admitted({slot: self._chance(slot) for slot in drafted}, None)

    def drafted_last(self, slot: int, signal: Signal) -> None:
        """Note its chance to stand."""
        self._track(slot, signal)

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        """As many of the drafted tokens, the likeliest first, as pay for their verification."""
        ranked = sorted(((stand, slot) for slot, stands in self._stands.items() for stand in stands), reverse=True)
        rate, seconds = self.rate, self._now.verify
        best, gain, worth = 0, 0.0, -rate * seconds[0]
        for count, (stand, _) in enumerate(ranked, start=1):
            gain += stand
            if gain - rate * seconds[count] > worth:
                best, worth = count, gain - rate * seconds[count]
        counts = dict.fromkeys(drafted, 0)
        for _, slot in ranked[:best]:
            counts[slot] += 1
        self._spent += seconds[best]
        self._tokens, self._seconds = KEEPS * self._tokens, KEEPS * self._seconds + self._spent
        return counts

    def observe(self, slot: int, step: Step) -> None:
        """Count what was committed, and read the text."""
        self._tokens += step.committed
        self._trackers[slot].observe(step)

    def _track(self, slot: int, signal: Signal) -> None:
        tracker = self._trackers[slot]
        tracker.keep_drafting(signal)
        self._stands[slot].append(tracker.chances.all_stand)

    def _chance(self, slot: int) -> float:
        """That one more token of a request would stand, with all before it."""
        chances = self._trackers[slot].chances
        return chances.all_stand * chances.next_stands

    def _admitted(self, chances: Mapping[int, float], backlog: Mapping[int, int] | None) -> list[int]:
        """The requests that draft a token now: the first of the ranking that pay together.

        Args:
            chances: of those that may.
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

    def _price(self, context: int) -> _Prices:
        """The costs at the nearest context length that was measured."""
        if context not in self._prices_at:
            measured = self._costs.contexts
            node = min(range(len(measured)), key=lambda i: abs(measured[i] - context))
            if node not in self._prices:
                self._prices[node] = _Prices(self._costs, self._batch, measured[node])
            self._prices_at[context] = self._prices[node]
        return self._prices_at[context]
