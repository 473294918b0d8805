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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.acceptance_model import (
    LEAST_CONFIDENCE,
    LEAST_DOUBT,
    AcceptanceModels,
    columns_of,
    decision_seconds,
    first_state,
    for_any_vocabulary,
    states,
)
from draftgauge.policies.base import (
    Policy,
    Signal,
    Step,
    StepCosts,
    TextView,
    verification_seconds,
)
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_positive, check_tokens
from draftgauge.policies.fitted import register_fitted
from draftgauge.policies.registry import register_policy
from draftgauge.policies.stopping import SIGNALS, check_vocabulary, deciding_seconds
from draftgauge.policies.suffix import CODE_BITS, SuffixIndex
from draftgauge.policies.suffix_columns import cells_of, suffix_of
from draftgauge.policies.tail_model import LEAST_STAND, TailModel, TailState
from draftgauge.policies.two_source_rule import Rule, TwoSourceNumbers, best_rate, cut, running_sums

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TWO_SOURCE = "two-source"
_CODE = (1 << CODE_BITS) - 1


class TwoSource:
    """Draft on, append what the text foretells, or stop; see :mod:`draftgauge.policies.two_source`.

    Attributes:
        reads: the text, and with a drafter the confidence of its tokens.
        index: of the text.
    """

    def __init__(self, numbers: TwoSourceNumbers, gamma_max: int, costs: StepCosts) -> None:
        """Find rate and prices for a cost curve."""
        stopping = numbers.stopping
        self.numbers, self.gamma_max = numbers, gamma_max
        text_alone = numbers.sources == "text"
        self.reads: Reads = frozenset({SignalName.TEXT} if text_alone else {SignalName.CONFIDENCE, SignalName.TEXT})
        self.decision = decision_seconds(stopping)._replace(committed=numbers.committed_seconds)
        draft = deciding_seconds(costs, gamma_max, self.decision)
        rising: Floats = isotonic_regression(verification_seconds(costs, gamma_max)).x
        verify = rising + self.decision.step
        self.rate = stopping.rate_scale * best_rate(numbers, draft, verify)
        self.rule = Rule(self.rate, draft, verify, numbers)
        self.models = AcceptanceModels(stopping)
        self.tail = TailModel(numbers.tail, gamma_max)
        self.index = SuffixIndex()
        self.reset()

    def reset(self) -> None:
        """An empty text."""
        self.index.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        """Index the prompt."""
        self.index.read(prompt_tokens)

    def limit(self) -> int:
        """``gamma_max``, or 0 where not even the first token is worth its time, or less than the tail."""
        index = self.index
        self._tail, self._all_stand = index.tail, 1.0
        run = math.log1p(index.run)
        self._of_text: float = self.tail.of_text(index.habit, run)
        order = self._foretell_from(index.tail)
        self._state = first_state(index.tail[-1], order, index.habit, run)
        return self.gamma_max if self._goes_on() else 0

    def keep_drafting(self, signal: Signal) -> bool:
        """While drafting on is worth its time, and more than the tail."""
        token, order = signal.token, self._state.order
        _, second, third, last = self._tail
        self._tail = (second, third, last, token)
        if order and token == self._foretold[self._at]:
            agreement, next_order = order, self._foretell_after()
        else:
            agreement, next_order = -order, self._foretell_from(self._tail)
        log_confidence = math.log(max(signal.confidence, LEAST_CONFIDENCE))
        log_doubt = math.log(LEAST_DOUBT - log_confidence)
        self._state = self._state.drafted(token, agreement, next_order, log_confidence, log_doubt)
        self._all_stand *= self.models.stands(self._state)
        return self._goes_on()

    def extend(self, room: int) -> Sequence[int]:
        """The best tail."""
        return self._foretold[self._at : self._at + min(self._length, room)]

    def observe(self, step: Step) -> None:
        """Read the committed tokens."""
        self.index.commit(step.tokens)

    def text_lengths(self, view: TextView) -> Ints:
        """All positions at once."""
        if not self.rule.models:
            return np.zeros(len(view.token), np.int64)
        return self.rule.choose(*decided_by(view, self.numbers)).drafted

    def appended_lengths(self, view: TextView, drafted: Ints) -> Ints:
        """The best tails after so many drafted tokens."""
        if not self.rule.models:
            return self.rule.best_tails(0, first_sums(view, self.tail))[1]
        _, sums = decided_by(view, self.numbers)
        lengths = np.zeros(len(drafted), np.int64)
        for depth in range(self.gamma_max + 1):
            rows = np.flatnonzero(drafted == depth)
            lengths[rows] = self.rule.best_tails(depth, sums[depth][rows])[1]
        return lengths

    def _foretell_from(self, tail: tuple[int, ...]) -> int:
        """Begin anew with what the text foretells after a tail; the length of the matched ending."""
        self._foretold: list[int] = []
        self._matches: list[int] = []
        self._at, self._end = 0, tail
        return self._matches[0] >> CODE_BITS if self._look_further() else 0

    def _foretell_after(self) -> int:
        """Go on behind the first token that was foretold; the length of the matched ending."""
        self._at += 1
        known = self._at < len(self._matches) or self._look_further()
        return self._matches[self._at] >> CODE_BITS if known else 0

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

    def _goes_on(self) -> bool:
        """Whether to draft one more token; the best tail's length is noted."""
        state, rule = self._state, self.rule
        worth = self._best_tail()
        if state.depth >= self.gamma_max or not rule.models:
            return False
        advantage = rule.advantage(state.depth, self._all_stand * self.models.next_stands(state))
        return advantage > 0 and advantage > rule.kappa * worth

    def _best_tail(self) -> float:
        """``G_j``; notes the length of the tail."""
        state, rule, tail = self._state, self.rule, self.tail
        self._length = 0
        depth = state.depth
        if not state.order or not rule.texts or depth >= self.gamma_max:
            return 0.0
        stand, matches, at = self._all_stand, self._matches, self._at
        base = self._of_text + tail.of_draft(depth, math.log(max(stand, LEAST_STAND)), state.agreed, state.disagreed)
        of_match, of_place, prices, least = tail.of_match, tail.of_place, rule.prices[depth], rule.least
        best, total, length = 0.0, 0.0, 0
        while depth + length < self.gamma_max and (at + length < len(matches) or self._look_further()):
            stand *= 1 / (1 + math.exp(-(of_match[matches[at + length]] + base + of_place[length])))
            total += stand
            length += 1
            worth = total - prices[length]
            if worth > best:
                best, self._length = worth, length
            if stand <= least[depth + length]:
                break  # no later token can be worth its verification
        return best


def first_sums(view: TextView, tail: TailModel) -> Floats:
    """``[P, G]`` the sums of :func:`chances_and_sums` before the first drafted token, which no signal of the drafter
    enters.
    """
    suffix = suffix_of(view)
    none = np.zeros(len(view.token))
    return running_sums(
        tail.gains(TailState(0, none + 1, none, none, suffix.habit, np.log1p(suffix.run)), cells_of(view)[0])
    )


def decided_by(view: TextView, numbers: TwoSourceNumbers) -> tuple[Floats, list[Floats]]:
    """:func:`chances_and_sums` of a trace, from what was derived before where it was of the same models."""
    stopping, tail = numbers.stopping, numbers.tail
    models = (stopping.hazard_by_agreement, stopping.token_hazard, stopping.next_by_order, tail)
    known = view.derived.get(TWO_SOURCE)
    if known is None or any(one is not other for one, other in zip(known[0], models, strict=True)):
        longest = view.draft_token.shape[1]
        known = (models, *chances_and_sums(view, AcceptanceModels(stopping), TailModel(tail, longest)))
        view.derived[TWO_SOURCE] = known
    return known[1], known[2]


def chances_and_sums(view: TextView, models: AcceptanceModels, tail: TailModel) -> tuple[Floats, list[Floats]]:
    """What the rule decides by at all positions: ``S_j m_j`` ``[P, G]``, and of each number of drafted tokens the sums
    ``[P, G - j]`` of the chances that the tail's tokens stand, minus infinity from where the text foretells none.
    """
    cells, suffix = cells_of(view), columns_of(view).suffix
    run = np.log1p(suffix.run)
    stand, chances, sums = np.ones(len(view.token)), [], []
    for state in states(view):
        if state.depth:
            stand = stand * models.all_stand(state)
        if state.depth < len(cells) - 1:
            chances.append(stand * models.all_next_stand(state))
        before = TailState(state.depth, stand, state.agreed, state.disagreed, suffix.habit, run)
        sums.append(running_sums(tail.gains(before, cells[state.depth])))
    return np.stack(chances, axis=1), sums


@register_fitted(TWO_SOURCE, SIGNALS)
def _build(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
    if costs is None:
        raise DraftgaugeError(
            "policy two-source weighs the cost of a step: give the pair's cost curve (`draftgauge profile` measures it)"
        )
    numbers = from_mapping(TwoSourceNumbers, parameters, "policy two-source")
    check_vocabulary(TWO_SOURCE, numbers.stopping, costs)
    return TwoSource(numbers, gamma_max, costs)


def _bundled(gamma_max: int, costs: StepCosts) -> tuple[TwoSourceNumbers, int]:
    """The bundled numbers for a pair, and its longest draft."""
    fitted = bundled_policy(TWO_SOURCE)
    numbers = from_mapping(TwoSourceNumbers, fitted.parameters, "bundled policy")
    longest = min(gamma_max, fitted.gamma_max)
    if numbers.stopping.vocabulary != costs.vocabulary:
        numbers = replace(numbers, stopping=for_any_vocabulary(numbers.stopping))
    return cut(numbers, longest), longest


@register_policy(
    TWO_SOURCE, "drafts on, appends what the text foretells, or stops, by what each brings and costs (two sources)"
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
    """The text alone under the rule of two sources, its tokens' verification priced so many times what it costs."""
    check_positive("gated-lookup", "price", price)
    numbers, longest = _bundled(gamma_max, costs)
    return TwoSource(replace(numbers, sources="text", price=price), longest, costs)
