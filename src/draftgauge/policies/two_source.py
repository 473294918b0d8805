"""Two sources in one draft: the drafter's tokens, then tokens that followed the same words earlier in the text.

As in :mod:`draftgauge.policies.stopping` a step is worth ``E[tokens] - lambda E[seconds]``. After ``j`` drafted tokens,
all accepted with the chance ``S_j``, appending the next ``n`` looked-up tokens gains ``S_j (c_1 + c_1 c_2 + ...)`` and
costs their verification only:

    ``G_j = max over n >= 0 of sum over i <= n of S_j c_1 .. c_i - lambda (V(j + n) - V(j))``.

Where rolling a recurrent state back takes time, what a refused token costs goes off too.

``c_i`` is the chance that a looked-up token is accepted where those before it are. It is a logistic function of how
long the n-gram match is, how often in a row that token followed, and whether it always did. The chance of a drafted
token is that of ``stopping``. One number more is added where the text predicts the same token, and one where it
predicts another.

Two rates price time. Drafting is priced at the rate of the best fixed length. ``V`` is priced at ``rate_scale`` times
that: what the rule reaches with both sources. Where the text predicts nothing, the next steps are like this one: a
token is worth what drafting alone makes of the time. At the higher rate drafting would stop where it pays, and on some
cost curves never start.

While drafting on is worth more than ``tail_weight G_j`` the rule drafts. That weight is below 1, as a tail can still
follow the longer draft. Then it takes the best of three:

- the draft with its best tail;
- where the text predicts another token in place of the last one, the draft less that token, then the tail from there.
  Its first token is accepted with the chance ``c_1 (1 - a)``, ``a`` being the dropped token's chance;
- the draft less its last token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from draftgauge.core.config import from_mapping
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, Signal, check_positive, check_shares, require_costs, sigmoid
from draftgauge.policies.fitted import bundled_policy, register_fitted, to_depth
from draftgauge.policies.lookup import FollowsText
from draftgauge.policies.ngrams import MOST_MATCHED, Match, NgramIndex
from draftgauge.policies.spec import register_policy
from draftgauge.policies.stopping import LEAST, MOST, Prices
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.traces.costs import CostCurve

TWO_SOURCE = "two-source"
SIGNALS = ("logit_confidence", "agrees", "disagrees", "log_matched", "log_streak", "always")


@dataclass(frozen=True)
class LookupNumbers:
    """The logistic function of a looked-up token's chance to be accepted where those before it are."""

    constant: float
    log_matched: float
    log_streak: float
    always: float

    def chance(self, match: Match) -> float:
        matched, streak, always = lookup_terms(match)
        return sigmoid(self.constant + self.log_matched * matched + self.log_streak * streak + self.always * always)


def lookup_terms(match: Match) -> tuple[float, float, float]:
    return math.log(match.matched), math.log(match.streak), float(match.streak == match.seen)


@dataclass(frozen=True)
class TwoSourceNumbers:
    """What is fitted.

    Attributes:
        constant, logit_confidence: of a drafted token's chance, see
            :class:`~draftgauge.policies.stopping.StoppingNumbers`.
        agrees, disagrees: added to its logit where an n-gram match predicts the same token, or another one.
        lookup: of a looked-up token's chance.
        tail_weight: of what looked-up tokens are worth, against drafting on.
        accepted_by_depth: see :class:`~draftgauge.policies.stopping.StoppingNumbers`.
        rate_scale: the rate that the rule reaches over that of the best fixed length; of looked-up tokens only.
    """

    constant: float
    logit_confidence: float
    agrees: float
    disagrees: float
    lookup: LookupNumbers
    accepted_by_depth: tuple[float, ...]
    tail_weight: float = 0.3
    rate_scale: float = 1.0


class Tail(NamedTuple):
    """The most valuable number of looked-up tokens after a draft.

    Attributes:
        worth: tokens that they gain, less the price of their verification; 0 for none.
    """

    tokens: list[int]
    worth: float


class TwoSource(FollowsText):
    """Draft on, append what the text predicts, or stop; see :mod:`draftgauge.policies.two_source`."""

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE, SignalName.TEXT})

    def __init__(self, numbers: TwoSourceNumbers, costs: CostCurve) -> None:
        super().__init__()
        self.numbers = numbers
        self.gamma_max = len(numbers.accepted_by_depth)
        self.prices = Prices(costs, self.reads, numbers.accepted_by_depth)
        self.verify = [numbers.rate_scale * price for price in self.prices.verify]
        self._cheapest = np.minimum.accumulate(self.verify[::-1])[::-1].tolist()  # of so many tokens or more
        self._rollback = [numbers.rate_scale * price for price in self.prices.rollback]
        self._context: list[int] = []  # the last tokens of text and draft
        self._depth = 0
        self._all_accepted = self._all_before = 1.0  # S_j and S_j-1
        self._match: Match | None = None  # what the text predicts next
        self._before: Match | None = None  # and what it predicted in place of the last drafted token
        self._tail = Tail([], 0.0)

    def ask_stored(self, stored: StoredTexts) -> None:
        self.index = NgramIndex(stored.index)

    def limit(self) -> int:
        self._context = self.index.text[-MOST_MATCHED:]
        self._depth, self._all_accepted, self._before = 0, 1.0, None
        return self.gamma_max if self._goes_on() else 0

    def keep_drafting(self, signal: Signal) -> bool:
        numbers, before = self.numbers, self._match
        confidence = min(max(signal.confidence, LEAST), MOST)
        logit = numbers.constant + numbers.logit_confidence * math.log(confidence / (1 - confidence))
        if before is not None:
            logit += numbers.agrees if before.token == signal.token else numbers.disagrees
        self._before = before if before is not None and before.token != signal.token else None
        self._all_before = self._all_accepted
        self._all_accepted *= sigmoid(logit)
        self._depth += 1
        self._context.append(signal.token)
        return self._goes_on()

    def drops_last(self) -> bool:
        """Where the text predicts another token that is worth more, or the last one less than its verification."""
        depth, price = self._depth, self.verify[self._depth] - self.verify[self._depth - 1]
        wrong = self._all_before - self._all_accepted  # the chance that it is the first refused
        kept = self._all_accepted + self._tail.worth - price - wrong * self._rollback[depth - 1]
        if self._before is not None:
            other = self._tail_after(self._context[:-1], depth - 1, self._before, wrong, self._all_before)
            if other.worth > max(kept, 0.0):
                self._tail = other
                return True
        if kept < 0:
            self._tail = Tail([], 0.0)
        return kept < 0

    def extend(self, room: int) -> Sequence[int]:
        return self._tail.tokens[:room]

    def _goes_on(self) -> bool:
        """Whether to draft one more token; notes the best tail if not."""
        depth = self._depth
        self._match = self.index.match(self._context[-MOST_MATCHED:])
        self._tail = self._tail_after(self._context, depth, self._match, self._all_accepted, self._all_accepted)
        if depth == self.gamma_max:
            return False
        worth = self.prices.worth_of_drafting(depth, self._all_accepted)
        return worth > max(0.0, self.numbers.tail_weight * self._tail.worth)

    def _tail_after(self, context: list[int], depth: int, match: Match | None, chance: float, reached: float) -> Tail:
        """The best tail after ``depth`` tokens.

        ``reached`` is the chance that these are accepted, ``chance`` that besides the first tail token may be right.
        """
        tokens: list[int] = []
        prices, gained, best, length = self.verify, 0.0, 0.0, 0
        while match is not None and depth + len(tokens) < self.gamma_max:
            chance *= self.numbers.lookup.chance(match)
            gained += chance - self._rollback[depth + len(tokens)] * (reached - chance)
            reached = chance
            tokens.append(match.token)
            worth = gained - (prices[depth + len(tokens)] - prices[depth])
            if worth > best:
                best, length = worth, len(tokens)
            at = depth + len(tokens)
            if worth + chance * (self.gamma_max - at) + prices[at] - self._cheapest[at] <= best:
                break  # not even if all that follow were accepted for nothing
            match = self.index.match([*context, *tokens][-MOST_MATCHED:])
        return Tail(tokens[:length], best)


@register_fitted(TWO_SOURCE, SIGNALS)
def _build(parameters: Mapping[str, Any], gamma_max: int, costs: CostCurve | None, _: str) -> Policy:
    numbers = from_mapping(TwoSourceNumbers, parameters, "policy two-source")
    check_shares(TWO_SOURCE, "accepted_by_depth", numbers.accepted_by_depth, gamma_max)
    check_positive(TWO_SOURCE, "rate_scale", numbers.rate_scale)
    return TwoSource(numbers, require_costs(TWO_SOURCE, costs))


@register_policy(
    TWO_SOURCE,
    "drafts on, appends what the text predicts, or stops, by expected gain and cost (two sources)",
    complexity=11,
    compared=True,
)
def two_source(*, gamma_max: int, costs: CostCurve) -> Policy:
    numbers = from_mapping(TwoSourceNumbers, bundled_policy(TWO_SOURCE).parameters, "bundled policy")
    return TwoSource(replace(numbers, accepted_by_depth=to_depth(numbers.accepted_by_depth, gamma_max)), costs)
