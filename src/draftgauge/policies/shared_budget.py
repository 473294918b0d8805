"""A budget of draft tokens that the requests of a batch share.

In a batch, drafts compete: a token drafted for one request takes time that another request's token could have used. So
at every depth the requests are ranked by the chance that their next token would be committed, ``S_j m_j``, and as many
of the first of them draft as raise committed tokens per second: those with the greatest

    ``A_ji sum of S_j m_j  -  rate (seconds of i passes + what verifying i more tokens of each takes)``,

if it is above 0 for some ``i``, the number of tokens that they would go on for; ``A_ji`` is as of
:mod:`draftgauge.policies.stopping`. Verification takes longer where requests have fewer tokens than the one with the
most, so leaving a request out has a price too. After drafting, the drafted tokens of all requests are ranked by the
chance ``S_j`` that they stand, and as many of the first of them are verified as pay for it likewise; the chance never
rises along a draft, so every request keeps a prefix of its own. ``rate`` is what the batch has reached so far, deciding
and ranking included, as Dinkelbach's iteration has it; chances come from the calibrated models of ``stopping``, seconds
from costs measured for batches.

vLLM prunes the drafts of a parallel drafter by confidence across requests (pull request 47808), SGLang likewise (pull
request 36136).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads
from draftgauge.policies.base import Policy, Signal, Step, begin, decision_of
from draftgauge.policies.batch import Opening
from draftgauge.policies.budget_ranking import BudgetRanking, PassCosts
from draftgauge.policies.stopping import ThroughputStopping, tokens_ahead


class SharedBudget:
    """Ranks drafted tokens over the requests of a batch; see :mod:`draftgauge.policies.shared_budget`."""

    ranks: ClassVar[bool] = True

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
        numbers = self._trackers[0].numbers
        longest = costs.gamma_max
        ahead = [tokens_ahead(numbers.onward, min(numbers.horizon, longest - j), j) for j in range(longest)]
        self._ranking = BudgetRanking(costs, len(policies), ahead, self.decision)
        self._stands: dict[int, list[float]] = {}

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        begin(self._trackers[slot], prompt_tokens)

    def first(self, opening: Opening) -> list[int]:
        """The requests whose first token is worth its time together."""
        self._ranking.begin(len(opening.caps), opening.context)
        self._stands = {slot: [] for slot in opening.caps}
        chances = {}
        for slot, cap in opening.caps.items():
            self._trackers[slot].limit()
            if cap > 0:
                chances[slot] = self._chance(slot)
        return self._ranking.admitted(chances, opening.backlog)

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        for slot, signal in drafted.items():
            self._track(slot, signal)
        return self._ranking.admitted({slot: self._chance(slot) for slot in drafted}, None)

    def drafted_last(self, slot: int, signal: Signal) -> None:
        self._track(slot, signal)

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        """As many of the drafted tokens, the likeliest first, as pay for their verification."""
        return self._ranking.verified(self._stands)

    def observe(self, slot: int, step: Step) -> None:
        self._ranking.committed(step.committed)
        self._trackers[slot].observe(step)

    def _track(self, slot: int, signal: Signal) -> None:
        tracker = self._trackers[slot]
        tracker.keep_drafting(signal)
        self._stands[slot].append(tracker.chances.all_stand)

    def _chance(self, slot: int) -> float:
        """The chance that one more token of a request would stand, with all before it."""
        chances = self._trackers[slot].chances
        return chances.all_stand * chances.next_stands
