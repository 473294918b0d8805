"""Two sources in one draft, priced together: ask the drafter once more, append what the text foretells, or stop.

A draft is the drafter's tokens, then tokens that the text foretells (:mod:`draftgauge.policies.suffix`), which cost
their verification only. As in :mod:`draftgauge.policies.stopping` a step is worth ``E[tokens] - lambda E[seconds]``,
``lambda`` being the rate that the rule itself reaches. After ``j`` drafted tokens, of which all stand with the chance
``S_j``, appending the text's next ``n`` tokens gains ``S_j c_1 + S_j c_1 c_2 + ...`` tokens and costs what verifying
them costs, so the *tail* is worth

    ``G_j = max over n >= 0 of sum over i <= n of S_j c_1 .. c_i - lambda (V(j + n) - V(j))``,

``c_i`` being the chance that its ``i``-th token stands where all before it do
(:mod:`draftgauge.policies.tail_model`). Drafting on without a tail is worth, as stopping has it,

    ``M_j = max over i >= 1 of S_j m_j A_ji - lambda (T(j + i) - T(j))``,

and the rule drafts on while ``M_j > max(0, kappa G_j)``, and else appends the best tail, also before the first drafted
token. With nothing in the text ``G_j`` is 0 and the rule is stopping.

``kappa`` is 1 if going on and appending exclude each other. They do not: after one more drafted token a tail can still
be appended, and a tail stays what it was worth where that token is the one that it began with, which asks for a
``kappa`` below 1; and ``M_j`` looks ahead by means over all drafts, the tail by chances of its own, so that their
errors differ. So ``kappa`` is fitted on training prompts, by the rate that the rule reaches there.

Once the draft has ended, its last token may be left out. Where the text foretells another one in its place, the tail
from there is worth ``S_j-1 c'_1 + S_j-1 c'_1 c_2 + ...`` tokens, ``c'_1`` being the chance of that other one now that
the drafter has spoken against it (:class:`~draftgauge.policies.two_source_rule.Instead`); and a token that is worth
less than its verification is left out even if nothing takes its place. The rule takes what is worth most. The draft may
then go on for longer, so ``kappa`` falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftgauge.core.config import from_mapping
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.acceptance_model import (
    AcceptanceModels,
    decision_seconds,
    for_any_vocabulary,
)
from draftgauge.policies.base import Policy, Signal, Step, StepCosts, TextView, measured_decision, verification_seconds
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_positive, check_tokens, require_costs
from draftgauge.policies.draft_chances import DraftChances
from draftgauge.policies.fitted import register_fitted
from draftgauge.policies.registry import register_policy
from draftgauge.policies.stopping import SIGNALS, check_vocabulary, deciding_seconds
from draftgauge.policies.stored_policies import charged
from draftgauge.policies.stored_texts import BackedIndex, StoredTexts
from draftgauge.policies.suffix import CODE_BITS, SuffixIndex
from draftgauge.policies.tail_model import LEAST_STAND, TailModel
from draftgauge.policies.tail_model import for_any_vocabulary as tail_for_any_vocabulary
from draftgauge.policies.two_source_rule import (
    MOST_LOGIT,
    Choices,
    Rule,
    TwoSourceNumbers,
    best_rate,
    cut,
    instead_chance,
)
from draftgauge.policies.two_source_trace import decided_by, first_sums, spoken_against

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TWO_SOURCE = "two-source"
_CODE = (1 << CODE_BITS) - 1


class _SpokenAgainst(NamedTuple):
    """What the text foretold where the drafter has drafted another token.

    Attributes:
        foretold: tokens and matches from some place on, that place, and the ending that they were looked up to.
        state: as of :meth:`TwoSource._tail_worth`.
    """

    foretold: tuple[list[int], list[int], int, tuple[int, ...]]
    state: tuple[int, float, int, int, int]


class TwoSource:
    """Draft on, append what the text foretells, or stop; see :mod:`draftgauge.policies.two_source`.

    Attributes:
        reads: the text, and with a drafter the confidence of its tokens.
        index: of the text.
        stored: earlier texts that it looks tokens up in too.
    """

    def __init__(self, numbers: TwoSourceNumbers, gamma_max: int, costs: StepCosts) -> None:
        """Find rate and prices for a cost curve."""
        stopping = numbers.stopping
        self.numbers, self.gamma_max = numbers, gamma_max
        text_alone = numbers.sources == "text"
        self.reads: Reads = frozenset({SignalName.TEXT} if text_alone else {SignalName.CONFIDENCE, SignalName.TEXT})
        stored = decision_seconds(stopping)._replace(committed=numbers.committed_seconds)
        measured = None if text_alone else measured_decision(costs, TWO_SOURCE)
        self.decision = measured or stored
        draft = deciding_seconds(costs, gamma_max, self.decision)
        rising: Floats = isotonic_regression(verification_seconds(costs, gamma_max)).x
        verify = rising + self.decision.step
        self.rate = stopping.rate_scale * best_rate(numbers, draft, verify)
        self.rule = Rule(self.rate, draft, verify, numbers)
        self._chances = DraftChances(AcceptanceModels(stopping), gamma_max)
        self.tail = TailModel(numbers.tail, gamma_max)
        self.index = SuffixIndex()
        self.stored: StoredTexts | None = None
        self._foretold: list[int] = []
        self._matches: list[int] = []
        self._at, self._end = 0, self.index.tail
        self._length: int | None = None  # of the best tail, which is looked for where it matters
        self._chosen: tuple[NDArray[np.int32], Choices] | None = None
        self._ended: tuple[NDArray[np.int32], Ints, Ints, Ints] | None = None
        self._instead = numbers.instead if numbers.sources == "both" else ()
        self.reset()

    def reset(self) -> None:
        self.index.reset()

    def ask_stored(self, stored: StoredTexts) -> None:
        self.stored, self.index = stored, BackedIndex(stored)
        self.decision = charged(self.decision, stored)

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.index.read(prompt_tokens)

    def limit(self) -> int:
        """``gamma_max``, or 0 where not even the first token is worth its time, or less than the tail."""
        index = self.index
        self._tail = index.tail
        log_run = math.log1p(index.run)
        self._of_text: float = self.tail.of_text(index.habit, log_run)
        self._spoken_against: _SpokenAgainst | None = None
        order = self._foretell_from(index.tail)
        return self.gamma_max if self._goes_on(self._chances.begin(index.tail[-1], order, index.habit, log_run)) else 0

    def keep_drafting(self, signal: Signal) -> bool:
        """While drafting on is worth its time, and more than the tail."""
        token, chances = signal.token, self._chances
        _, second, third, last = self._tail
        self._tail = (second, third, last, token)
        foretells = chances.order > 0
        agrees = foretells and token == self._foretold[self._at]
        if self._instead:
            self._spoken_against = self._contradicted(last) if foretells and not agrees else None
        order = self._foretell_after() if agrees else self._foretell_from(self._tail)
        return self._goes_on(chances.drafted(token, agrees, order, signal.confidence))

    def trims(self) -> bool:
        """Where the last token is worth less than its verification, or than what the text foretells in its place."""
        if not self._instead:
            return False
        if self._length is None:
            self._best_tail()
        chances = self._chances
        prices = self.rule.prices[chances.depth - 1]
        kept = chances.all_stand + self._worth - prices[1]
        against = self._spoken_against
        if against is not None:
            length = self._length
            foretold = self._foretold, self._matches, self._at, self._end
            self._foretold, self._matches, self._at, self._end = against.foretold
            if self._tail_worth(against.state, chances.stands) > max(kept, 0.0):
                return True
            self._foretold, self._matches, self._at, self._end = foretold
            self._length = length
        if kept >= 0:
            return False
        self._length = 0
        return True

    def extend(self, room: int) -> Sequence[int]:
        if self._length is None:
            self._best_tail()
        return self._foretold[self._at : self._at + min(self._length or 0, room)]

    def observe(self, step: Step) -> None:
        self.index.commit(step.tokens)

    def text_lengths(self, view: TextView) -> Ints:
        return self._choices(view).drafted

    def appended_lengths(self, view: TextView, drafted: Ints) -> Ints:
        return self._ends(view, drafted)[0]

    def trimmed(self, view: TextView, drafted: Ints) -> Ints:
        return self._ends(view, drafted)[1]

    def _ends(self, view: TextView, drafted: Ints) -> tuple[Ints, Ints]:
        """``[P]`` tokens appended, and left out, after drafts of some lengths; found once."""
        ended = self._ended
        if ended is None or ended[0] is not view.token or not np.array_equal(ended[1], drafted):
            choices = self._choices(view)
            appended, trimmed = choices.appended.copy(), np.zeros_like(drafted)
            others = np.flatnonzero(drafted != choices.drafted)  # where not as many could be drafted as were wanted
            if len(others):
                sums = decided_by(view, self.numbers).sums
                for depth in np.unique(drafted[others]).tolist():
                    rows = others[drafted[others] == depth]
                    appended[rows] = self.rule.best_tails(depth, sums[depth], rows)[1]
            if self._instead:
                for depth in np.unique(drafted[drafted > 0]).tolist():
                    rows = np.flatnonzero(drafted == depth)
                    appended[rows], trimmed[rows] = self._end_at(view, depth, rows, appended[rows])
            ended = self._ended = view.token, drafted, appended, trimmed
        return ended[2:]

    def _end_at(self, view: TextView, depth: int, rows: Ints, appended: Ints) -> tuple[Ints, Ints]:
        """:meth:`_ends` at some positions ``[n]`` where ``depth`` tokens are drafted."""
        decided, rule = decided_by(view, self.numbers), self.rule
        tail = rule.best_tails(depth, decided.sums[depth], rows)[0]
        kept = decided.stand[rows, depth] + tail - rule.prices[depth - 1][1]
        trimmed = kept < 0
        lengths = np.where(trimmed, 0, appended)
        against = np.flatnonzero(spoken_against(view, depth)[rows])
        at, prices = rows[against], rule.prices[depth - 1][1:]
        terms = decided.instead(depth, at)
        share = instead_chance(self._instead, terms) / decided.foretold(depth - 1, at)
        worth = decided.sums[depth - 1].running[at, : len(prices)] * share[:, None] - prices
        length = worth.argmax(axis=1)
        better = worth[np.arange(len(at)), length] > np.maximum(kept[against], 0.0)
        lengths[against[better]], trimmed[against[better]] = length[better] + 1, True
        return lengths, trimmed.astype(np.int64)

    def _choices(self, view: TextView) -> Choices:
        """What it does at all positions, found once."""
        if self._chosen is None or self._chosen[0] is not view.token:
            if self.rule.models:
                choices = self.rule.choose(*decided_by(view, self.numbers)[:2])
            else:
                rows = np.arange(len(view.token))
                choices = Choices(np.zeros_like(rows), self.rule.best_tails(0, first_sums(view, self.numbers), rows)[1])
            self._chosen = view.token, choices
        return self._chosen[1]

    def _foretell_from(self, tail: tuple[int, ...]) -> int:
        """Begin anew with what the text foretells after a tail; the length of the matched ending."""
        self._foretold, self._matches = [], []
        self._at, self._end = 0, tail
        return self._matches[0] >> CODE_BITS if self._look_further() else 0

    def _foretell_after(self) -> int:
        """Go on behind the first token that was foretold; the length of the matched ending."""
        self._at += 1
        foretells = self._at < len(self._matches) or self._look_further()
        return self._matches[self._at] >> CODE_BITS if foretells else 0

    def _look_further(self) -> bool:
        """Look up one more token after those foretold; whether there is one."""
        first, second, third, last = self._end
        entry, order = self.index.entry(first, second, third, last)
        if not order:
            return False
        token = entry >> CODE_BITS
        self._foretold.append(token)
        self._matches.append(order << CODE_BITS | entry & _CODE)
        self._end = (second, third, last, token)
        return True

    def _contradicted(self, last: int) -> _SpokenAgainst:
        """What the text foretells here, behind a last token, before the drafted one that speaks against it."""
        chances = self._chances
        state = chances.depth, chances.all_stand, chances.agreed, chances.disagreed, last
        return _SpokenAgainst((self._foretold, self._matches, self._at, self._end), state)

    def _logit_instead(self, logit: float, drafted: float) -> float:
        """The logit of a looked-up token in place of a drafted one that stands with a chance."""
        one, by_text, by_draft = self._instead
        of_draft = math.log(drafted / (1 - drafted)) if drafted < 1 else MOST_LOGIT
        return one + by_text * _held(logit) + by_draft * _held(of_draft)

    def _goes_on(self, chance: float) -> bool:
        """Whether to draft one more token, which stands with all before it with that chance."""
        self._length = None
        chances, rule = self._chances, self.rule
        depth = chances.depth
        if chance <= rule.worthless[depth]:
            return False
        return not chances.order or rule.advantage(depth, chance) > rule.kappa * self._best_tail()

    def _best_tail(self) -> float:
        """``G_j``; notes it and the length of the tail."""
        chances = self._chances
        self._length, self._worth = 0, 0.0
        if chances.order and self.rule.texts:
            before = chances.depth, chances.all_stand, chances.agreed, chances.disagreed, self._tail[-1]
            self._worth = self._tail_worth(before)
        return self._worth

    def _tail_worth(self, state: tuple[int, float, int, int, int], drafted: float | None = None) -> float:
        """What the best tail is worth from a state on; notes its length.

        Args:
            state: tokens drafted, the chance that all stand, how many of them were and were not foretold, and the last.
            drafted: the chance of the token that was drafted in place of the first one foretold, if one was.
        """
        rule, tail = self.rule, self.tail
        depth, stand, agreed, disagreed, before = state
        self._length, longest = 0, self.gamma_max - depth
        if not longest:
            return 0.0
        matches, at = self._matches, self._at
        log_stand = math.log(stand if stand > LEAST_STAND else LEAST_STAND)
        base = self._of_text + tail.of_draft(depth, log_stand, agreed, disagreed)
        of_match, of_offset, prices, least = tail.of_match, tail.of_offset, rule.prices[depth], rule.least
        after, of_token, foretold = tail.after.of, tail.foretold.of, self._foretold
        share = 1 - self.index.habit if self.index.habit > 0 else 1.0
        best, total, length = 0.0, 0.0, 0
        while length < longest and (at + length < len(matches) or self._look_further()):
            token = foretold[at + length]
            logit = of_match[matches[at + length]] + base + of_offset[length]
            logit += share * (after.get(before, 0.0) + of_token.get(token, 0.0))
            if drafted is not None:
                logit, drafted = self._logit_instead(logit, drafted), None
            before = token
            stand *= 1 / (1 + math.exp(-logit))
            total += stand
            length += 1
            worth = total - prices[length]
            if worth > best:
                best, self._length = worth, length
            if stand <= least[depth + length]:
                break  # no later token can be worth its verification
        return best


def _held(logit: float) -> float:
    return min(max(logit, -MOST_LOGIT), MOST_LOGIT)


@register_fitted(TWO_SOURCE, SIGNALS)
def _build(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
    costs = require_costs(TWO_SOURCE, costs)
    numbers = from_mapping(TwoSourceNumbers, parameters, "policy two-source")
    check_vocabulary(TWO_SOURCE, numbers.stopping, costs)
    return TwoSource(numbers, gamma_max, costs)


def _bundled(gamma_max: int, costs: StepCosts) -> tuple[TwoSourceNumbers, int]:
    """The bundled numbers for a pair, and its longest draft."""
    fitted = bundled_policy(TWO_SOURCE)
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters, "bundled policy")
    longest = min(gamma_max, fitted.gamma_max)
    if numbers.stopping.vocabulary != costs.vocabulary:
        tail = tail_for_any_vocabulary(numbers.tail)
        numbers = replace(numbers, stopping=for_any_vocabulary(numbers.stopping), tail=tail)
    return cut(numbers, longest), longest


@register_policy(
    TWO_SOURCE,
    "drafts on, appends what the text foretells, or stops, by what each brings and costs (two sources)",
    compared=True,
    timed=True,
)
def two_source(horizon: int = 8, *, gamma_max: int, costs: StepCosts) -> Policy:
    """Two sources priced together; the models of acceptance are the bundled ones."""
    check_tokens(TWO_SOURCE, "horizon", horizon)
    numbers, longest = _bundled(gamma_max, costs)
    return TwoSource(replace(numbers, stopping=replace(numbers.stopping, horizon=horizon)), longest, costs)


@register_policy(
    "gated-lookup",
    "drafts nothing and appends what followed the same words the last time where its chance is worth its verification",
    grid={"price": (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)},
)
def gated_lookup(price: float = 1.0, *, gamma_max: int, costs: StepCosts) -> Policy:
    """The text alone under the rule of two sources, verifying a token being priced at ``price`` times its cost."""
    check_positive("gated-lookup", "price", price)
    numbers, longest = _bundled(gamma_max, costs)
    return TwoSource(replace(numbers, sources="text", price=price), longest, costs)
