"""Throughput-optimal stopping: draft the next token while its chance to be committed is worth its time.

Decoding is a renewal-reward process: steps commit tokens and take seconds, and the rate to be maximised is the ratio of
the sums. For a rate ``lambda`` the best rule maximises ``E[tokens] - lambda E[seconds]`` of a step, and the best rate
is the one at which that is zero (Dinkelbach 1967, "On nonlinear fractional programming"). Within a step this is a
stopping problem. After ``j`` drafted tokens, with ``S_j`` the chance that all of them stand and ``m_j`` the chance that
one more would too, drafting ``i`` more tokens gains ``S_j m_j A_ji`` tokens and costs ``T(j + i) - T(j)`` seconds,
where ``A_ji = 1 + r + r r' + ...`` counts the tokens after the next one by how often drafts that came so far went on.
So drafting goes on while

    ``S_j m_j > theta_j = min over i of lambda (T(j + i) - T(j)) / A_ji``.

With ``i = 1`` alone this is the one-step look-ahead; further ones matter where verification costs come in jumps. The
cost curve alone decides ``theta`` and ``lambda``; ``S`` and ``m`` come from two logistic models of causal signals: this
token and its confidence, the product and the worst of the confidences so far, the depth, and whether the text itself
has said this before (:mod:`draftgauge.policies.acceptance_model`). Compression is no input: a policy fitted on one
target's cost curve serves another's.

The token that ends a draft is mostly one that the drafter was unsure of. What drafting it took is spent, what verifying
it takes is not, so it is left out where ``S_j < lambda (V(j) - V(j - 1))``, ``V(k)`` being the seconds of a step that
verifies ``k`` tokens. That pays where every token more costs the target time: on CPUs, under LLM.int8, for mixtures of
experts. A fit tries it on its prompts.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.acceptance_model import (
    AcceptanceModels,
    StoppingNumbers,
    cut,
    decision_seconds,
    for_any_vocabulary,
    states,
)
from draftgauge.policies.base import (
    DecisionSeconds,
    Policy,
    Signal,
    Step,
    StepCosts,
    TextView,
    measured_decision,
    seconds_by_length,
    verification_seconds,
)
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_tokens, require_costs
from draftgauge.policies.draft_chances import DraftChances
from draftgauge.policies.fitted import register_fitted
from draftgauge.policies.online import OnlineCalibration
from draftgauge.policies.registry import register_policy
from draftgauge.policies.suffix import CODE_BITS, SuffixIndex

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STOPPING = "stopping"
SIGNALS = ("confidence", "token")
_RATE_MOVES = 0.01  # of the rate, before the thresholds are computed again


def dinkelbach(rate: float, reached: Callable[[float], float]) -> float:
    """The rate at which a rule that prices seconds by it reaches it, climbing from one below.

    Args:
        rate: to start from, in tokens a second.
        reached: the rate that the rule reaches when it prices seconds by the given one.
    """
    for _ in range(20):
        now = reached(rate)
        if now <= rate * (1 + 1e-6):
            break
        rate = now
    return rate


def best_rate(chances: Floats, accepted: Ints, seconds: Floats, onward: Sequence[float], horizon: int) -> float:
    """The best rate of the rule on some steps, in tokens a second, see :func:`dinkelbach`.

    Args:
        chances: ``[n, gamma_max]``.
        accepted: ``[n]``.
        seconds: ``[gamma_max + 1]`` of a step by draft length.
        onward, horizon: as of :class:`StoppingNumbers`.
    """

    def reached(rate: float) -> float:
        goes_on = chances > thresholds(rate, seconds, onward, horizon)
        lengths = np.where(goes_on.all(axis=1), chances.shape[1], (~goes_on).argmax(axis=1))
        return float((np.minimum(lengths, accepted) + 1).sum() / seconds[lengths].sum())

    return dinkelbach(1 / float(seconds[0]), reached)  # from plain decoding


def thresholds(rate: float, seconds: Floats, onward: Sequence[float], horizon: int) -> Floats:
    """``[gamma_max]`` ``theta_j``: drafting goes on after ``j`` tokens while ``S_j m_j`` is above it."""
    ahead = (look_ahead(rate, seconds, onward, horizon, drafted) for drafted in range(len(seconds) - 1))
    return np.array([min(price / tokens for tokens, price in lines) for lines in ahead])


def look_ahead(
    rate: float, seconds: Floats, onward: Sequence[float], horizon: int, drafted: int
) -> list[tuple[float, float]]:
    """``(A_ji, lambda (T(j + i) - T(j)))`` of drafting ``i = 1, 2, ..`` more tokens after ``j = drafted``."""
    ahead = tokens_ahead(onward, min(horizon, len(seconds) - 1 - drafted), drafted)
    return [
        (tokens, float(rate * (seconds[drafted + more] - seconds[drafted])))
        for more, tokens in enumerate(ahead, start=1)
    ]


def tokens_ahead(onward: Sequence[float], longest: int, drafted: int) -> list[float]:
    """``A_ji``: what drafting ``i = 1 .. longest`` more tokens after ``j = drafted`` brings, for each token that the
    first of them does.
    """
    going_on = accumulate((onward[at] for at in range(drafted + 1, drafted + longest)), operator.mul, initial=1.0)
    return list(accumulate(going_on))


def deciding_seconds(costs: StepCosts, gamma_max: int, decision: DecisionSeconds) -> Floats:
    """``[gamma_max + 1]`` seconds of a step by draft length, signals and decisions included.

    Drafting more takes no less time: where a measured curve falls, its noise is averaged out (isotonic regression). A
    rule that looks ahead would otherwise draft towards every dip.
    """
    measured = seconds_by_length(costs, gamma_max, ThroughputStopping.reads)
    rising: Floats = isotonic_regression(measured).x
    return rising + decision.step + decision.token * np.arange(gamma_max + 1)


class ThroughputStopping:
    """Draft while the next token's chance to be committed is worth its time; see :mod:`draftgauge.policies.stopping`.

    Online it goes on calibrating: after every step the models' constants move by what the judged tokens showed, and the
    rate by what the steps took. Where that says that no draft pays it drafts nothing, but for one token now and then to
    notice a change.

    Attributes:
        index: of the text.
        chances: of the draft that grows, as both models see it.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.CONFIDENCE, SignalName.TEXT})

    def __init__(self, numbers: StoppingNumbers, gamma_max: int, costs: StepCosts) -> None:
        """Find rate and thresholds for a cost curve."""
        self.numbers = numbers
        self.gamma_max = gamma_max
        self.decision = measured_decision(costs, STOPPING) or decision_seconds(numbers)
        self.seconds = deciding_seconds(costs, gamma_max, self.decision)
        steps = np.asarray(numbers.chances), np.asarray(numbers.accepted)
        self.rate = numbers.rate_scale * best_rate(*steps, self.seconds, numbers.onward, numbers.horizon)
        self.models = AcceptanceModels(numbers)
        self.chances = DraftChances(self.models, gamma_max)
        self._theta = self._thresholds()
        self._least: list[float] = []  # entry j is the chance below which the last of j drafted tokens is left out
        if numbers.trims and not numbers.online:
            verify: Floats = isotonic_regression(verification_seconds(costs, gamma_max)).x
            self._least = (self.rate * np.diff(verify, prepend=verify[0])).tolist()
        self._walked: tuple[NDArray[np.int32], Ints, Floats] | None = None
        self.index = SuffixIndex()
        self._online = OnlineCalibration(self.rate) if numbers.online else None
        self.reset()

    def reset(self) -> None:
        """An empty text; what was calibrated stays."""
        self.index.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.index.read(prompt_tokens)

    def limit(self) -> int:
        """``gamma_max``, or 0 where not even the first token is worth its time."""
        index = self.index
        tail = self._tail = index.tail
        self._foretold, order = index.entry(*tail)
        chance = self.chances.begin(tail[-1], order, index.habit, math.log1p(index.run))
        if self._online is not None:
            self._online.begin(chance)
            if self._online.probes(chance > self._theta[0]):
                return 1
        return self.gamma_max if chance > self._theta[0] else 0

    def keep_drafting(self, signal: Signal) -> bool:
        token, chances = signal.token, self.chances
        agrees = token == self._foretold >> CODE_BITS
        _, second, third, last = self._tail
        self._tail = (second, third, last, token)
        self._foretold, order = self.index.entry(second, third, last, token)
        worth = chances.drafted(token, agrees, order, signal.confidence)
        if self._online is not None:
            self._online.note(chances.stands, chances.next_stands)
        return chances.depth < self.gamma_max and worth > self._theta[chances.depth]

    def trims(self) -> bool:
        """Where the last token is worth less than its verification."""
        chances = self.chances
        return bool(self._least) and chances.all_stand < self._least[chances.depth]

    def observe(self, step: Step) -> None:
        """Read the committed tokens; online, calibrate."""
        self.index.commit(step.tokens)
        if self._online is not None:
            models = self.models
            models.hazard_bias, models.next_bias, rate = self._online.learn(step, float(self.seconds[step.drafted]))
            if abs(rate / self.rate - 1) > _RATE_MOVES:
                self.rate = rate
                self._theta = self._thresholds()

    def text_lengths(self, view: TextView) -> Ints | None:
        """All positions at once; None online."""
        return None if self._online is not None else self._walk(view)[0]

    def trimmed(self, view: TextView, drafted: Ints) -> Ints:
        if not self._least:
            return np.zeros_like(drafted)
        stand = self._walk(view)[1][np.arange(len(drafted)), drafted]
        return (stand < np.asarray(self._least)[drafted]).astype(np.int64)

    def _walk(self, view: TextView) -> tuple[Ints, Floats]:
        """Draft lengths ``[P]``; and where tokens are left out the chance ``[P, gamma_max + 1]`` that all of 1, 2, ...
        drafted tokens stand, 0 beyond those lengths. Found once."""
        if self._walked is not None and self._walked[0] is view.token:
            return self._walked[1:]
        lengths = np.zeros(len(view.token), np.int64)
        stands = np.zeros((len(view.token), self.gamma_max + 1 if self._least else 0))
        rows = np.arange(len(view.token))
        stand = np.ones(len(rows))
        walk = states(view)
        state = next(walk)
        for depth in range(self.gamma_max):
            goes_on = stand * self.models.all_next_stand(state) > self._theta[depth]
            rows = rows[goes_on]
            lengths[rows] = depth + 1
            if not len(rows):
                break
            state = walk.send(goes_on)
            stand = stand[goes_on] * self.models.all_stand(state)
            if self._least:
                stands[rows, depth + 1] = stand
        self._walked = view.token, lengths, stands
        return lengths, stands

    def acceptance(self, view: TextView) -> Floats:
        """``[P, G]`` chance that each drafted token stands where those before it do; NaN where nothing was drafted."""
        chances = np.stack([self.models.all_stand(state) for state in states(view) if state.depth], axis=1)
        return np.where(view.draft_token >= 0, chances, np.nan)

    def first_chances(self, view: TextView) -> Floats:
        """``[P]`` chance that the first token would stand, as it is judged before drafting it."""
        return self.models.all_next_stand(next(states(view)))

    def _thresholds(self) -> list[float]:
        theta: list[float] = thresholds(self.rate, self.seconds, self.numbers.onward, self.numbers.horizon).tolist()
        return theta


@register_fitted(STOPPING, SIGNALS)
def _build(parameters: Mapping[str, Any], gamma_max: int, costs: StepCosts | None) -> Policy:
    costs = require_costs(STOPPING, costs)
    numbers = from_mapping(StoppingNumbers, parameters, "policy stopping")
    check_vocabulary(STOPPING, numbers, costs)
    return ThroughputStopping(numbers, gamma_max, costs)


def check_vocabulary(policy: str, numbers: StoppingNumbers, costs: StepCosts) -> None:
    """Raise :class:`DraftgaugeError` if numbers and costs are of different vocabularies."""
    if numbers.vocabulary and costs.vocabulary and numbers.vocabulary != costs.vocabulary:
        raise DraftgaugeError(
            f"policy {policy} was fitted for another vocabulary, whose tokens it knows by their ids: fit it on "
            "this trace"
        )


@register_policy(
    STOPPING,
    "drafts on while the next token's chance to be committed is worth its time (throughput-optimal stopping)",
    compared=True,
    timed=True,
)
def stopping(horizon: int = 8, online: bool = False, *, gamma_max: int, costs: StepCosts) -> Policy:
    """Throughput-optimal stopping with the bundled models of acceptance, which know the bundled pair's tokens."""
    check_tokens("stopping", "horizon", horizon)
    fitted = bundled_policy(STOPPING)
    numbers = from_mapping(StoppingNumbers, fitted.parameters, "bundled policy")
    longest = min(gamma_max, fitted.gamma_max)
    if numbers.vocabulary != costs.vocabulary:
        numbers = for_any_vocabulary(numbers)
    shorter = cut(numbers, longest)
    return ThroughputStopping(replace(shorter, horizon=horizon, online=online), longest, costs)
