"""Fit throughput-optimal stopping to dense traces; see :mod:`draftgauge.policies.stopping` for what is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.fitting.decision_times import TIMED_LENGTH, decision_times
from draftgauge.fitting.logistic import DIGITS, LEAST_EXAMPLES, UNVISITED, fit_scaled, mean_shift, spread_design
from draftgauge.fitting.registry import FitOptions, register_fit
from draftgauge.policies.acceptance_model import (
    AGREEMENTS,
    AcceptanceModels,
    HazardByClass,
    NextByOrder,
    NextShared,
    State,
    StoppingNumbers,
    TokenOffsets,
    agreement_class,
    hazard_terms,
    next_terms,
    states,
)
from draftgauge.policies.base import measured_decision
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.stopping import SIGNALS, STOPPING, ThroughputStopping
from draftgauge.policies.suffix import ORDER
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import replay
from draftgauge.replaying.splits import prompt_keys
from draftgauge.replaying.views import text_view
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]

KEPT_STEPS = 512
"""Steps of the fitting prompts that a fitted policy carries, to find its rate on any cost curve."""
HAZARD_PRIOR, NEXT_PRIOR = 2.0, 20.0
"""Weight of the prior that a token adds nothing, in units of the log loss's curvature, chosen by the gain on validation
prompts.
"""
ROUNDS = 3
"""Rounds of fitting: the first on all positions alike, later ones for those that the policy fitted before reaches."""


class Examples(NamedTuple):
    """One logistic regression's data, ``n`` examples.

    Attributes:
        terms: ``[n, K]``.
        token: ``[n]`` the last token of the state.
        stood: ``[n]`` whether the token was accepted.
        first: ``[n]`` whether the state is that before the first drafted token.
        visited: ``[n]`` whether the policy comes to the state.
    """

    terms: Floats
    token: NDArray[np.int64]
    stood: NDArray[np.bool_]
    first: NDArray[np.bool_]
    visited: NDArray[np.bool_]

    @property
    def weight(self) -> Floats:
        """``[n]`` weight of each in the fit."""
        return np.where(self.visited, 1.0, UNVISITED)


def fit_stopping(
    traces: Sequence[Trace],
    costs: Sequence[CostCurve],
    *,
    horizon: int = 8,
    online: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> FittedPolicy:
    """Fit the two models of acceptance on some traces, for the positions at which they decide.

    Every drafted token that was judged, that is, all up to the first rejected one of each position, is an example of
    the hazard; every state before such a token is one of the chance of the next. The policy does not come to all
    positions alike: a step starts where the one before was corrected, which is where the draft is bad. So the policy of
    each round is replayed, and in the next the states that it came to weigh more, and the models' constants are moved
    until their mean chances are right at these.

    Args:
        traces: dense, of the prompts to fit on, one for each pair or compression; of one ``gamma_max``.
        costs: of each trace. They only say at which steps the rate is looked for; another curve may be given to the
            policy later.
        horizon: tokens that the policy looks ahead; 1 for the one-step look-ahead.
        online: whether the policy goes on calibrating while it runs.
        provenance: how, for the reader of the file.

    Raises:
        TraceError: if there is nothing to learn from, the traces differ in ``gamma_max`` or lack the prompts' tokens.
    """
    gamma_max = common_gamma_max(traces)
    vocabulary = common_vocabulary(costs)
    reach = [np.full(trace.positions, gamma_max) for trace in traces]
    for round_ in range(ROUNDS):
        numbers = fit_models(traces, reach, gamma_max, recalibrate=round_ > 0)
        numbers = replace(numbers, horizon=horizon, vocabulary=vocabulary)
        numbers = _with_steps(numbers, traces, costs)
        reach = [_reach(numbers, trace, curve) for trace, curve in zip(traces, costs, strict=True)]
    if not online:
        numbers = _trimming(numbers, traces, costs)
    numbers = with_decision_times(replace(numbers, online=online), costs[0], gamma_max)
    prompts = dict.fromkeys(key for trace in traces for key in prompt_keys(trace))
    return FittedPolicy(STOPPING, gamma_max, SIGNALS, asdict(numbers), dict(provenance or {}), tuple(prompts))


def fit_models(
    traces: Sequence[Trace], reach: Sequence[NDArray[np.int64]], gamma_max: int, recalibrate: bool
) -> StoppingNumbers:
    """Both models, without the steps that the rate is found on.

    Args:
        traces: to fit on.
        reach: ``[P]`` of each, tokens that the policy drafts where its steps start; -1 at other positions.
        gamma_max: of the traces.
        recalibrate: whether to move the constants for the states that the policy comes to.
    """
    pairs = list(zip(traces, reach, strict=True))
    hazard = _join([hazard_examples(trace, drafted) for trace, drafted in pairs])
    following = _join([next_examples(trace, drafted) for trace, drafted in pairs])
    for name, examples in (("hazard", hazard), ("next token", following)):
        if len(set(examples.stood.tolist())) < 2:
            raise TraceError(
                f"the traces hold no accepted and rejected drafted tokens to fit the {name} on: record more prompts"
            )
    weights, weights_next = _regress(hazard), _regress(following)
    tokens = np.flatnonzero(np.bincount(np.maximum(following.token, 0)) >= LEAST_EXAMPLES)
    offsets = _token_offsets(hazard, weights, tokens, HAZARD_PRIOR)
    offsets_next = _token_offsets(following, weights_next, tokens, NEXT_PRIOR)
    by_agreement, shared = _unfold(weights, len(AGREEMENTS), len(HazardByClass._fields))
    by_order, shared_next = _unfold(weights_next, ORDER + 1, len(NextByOrder._fields))
    if recalibrate:
        logits = _logits(hazard, weights, TokenOffsets(tokens.tolist(), offsets))
        by_agreement = _moved(by_agreement, _shift(logits, hazard, hazard.visited))
        logits = _logits(following, weights_next, TokenOffsets(tokens.tolist(), offsets_next))
        first = _shift(logits, following, following.visited & following.first)
        later = _shift(logits, following, following.visited & ~following.first)
        by_order = _moved(by_order, later)
        named = NextShared(*shared_next)
        shared_next = tuple(named._replace(none=named.none + first - later))
    return StoppingNumbers(
        hazard_by_agreement=by_agreement,
        hazard=shared,
        next_by_order=by_order,
        next=shared_next,
        tokens=tuple(tokens.tolist()),
        token_hazard=offsets,
        token_next=offsets_next,
        onward=_onward(traces, gamma_max),
        chances=(),
        accepted=(),
    )


def _reach(numbers: StoppingNumbers, trace: Trace, costs: CostCurve) -> NDArray[np.int64]:
    """``[P]`` tokens that the policy drafts where its steps start; -1 at other positions."""
    record = replay(trace, ThroughputStopping(numbers, trace.gamma_max, costs)).record
    drafted = np.full(trace.positions, -1)
    drafted[record.rows(trace)] = record.drafted
    return drafted


def _logits(examples: Examples, weights: Floats, offsets: TokenOffsets) -> Floats:
    logits: Floats = examples.terms @ weights[:-1] + weights[-1] + offsets.at(examples.token)
    return logits


def _shift(logits: Floats, examples: Examples, chosen: NDArray[np.bool_]) -> float:
    return mean_shift(logits[chosen], examples.stood[chosen])


def _moved(by_class: tuple[tuple[float, ...], ...], shift: float) -> tuple[tuple[float, ...], ...]:
    """Weights by class with their constants moved."""
    return tuple((constant + shift, *rest) for constant, *rest in by_class)


def hazard_examples(trace: Trace, reach: NDArray[np.int64]) -> Examples:
    """One example for each drafted token whose forerunners were all accepted; ``reach`` as of :func:`fit_models`."""
    return _examples(trace, reach, ahead=0)


def next_examples(trace: Trace, reach: NDArray[np.int64]) -> Examples:
    """One example for each state before such a token."""
    return _examples(trace, reach, ahead=1)


def _examples(trace: Trace, reach: NDArray[np.int64], ahead: int) -> Examples:
    """Examples of states after ``d`` drafted tokens that speak of token ``d + ahead``."""
    parts, caps = [], draft_caps(trace)
    for state in states(text_view(trace)):
        token = state.depth + ahead
        if not 1 <= token <= trace.gamma_max:
            continue
        judged = (trace.accepted >= token - 1) & (caps >= token)
        rows = state.at(judged)
        terms = next_design(rows) if ahead else hazard_design(rows)
        first = np.full(len(rows.token), state.depth == 0)
        parts.append(Examples(terms, rows.token, trace.accepted[judged] >= token, first, state.depth <= reach[judged]))
    return _join(parts)


def hazard_design(state: State) -> Floats:
    """``[n, K]`` the hazard's terms, those by agreement spread over one block a class."""
    return spread_design(hazard_terms(state), agreement_class(state.agreement), len(AGREEMENTS))


def next_design(state: State) -> Floats:
    """``[n, K]`` the next token's terms, those by matched ending spread over one block a length."""
    return spread_design(next_terms(state), state.order, ORDER + 1)


def _regress(examples: Examples) -> Floats:
    """Weights ``[K]`` on the terms as they are; the blocks of classes hold the constant."""
    weights, constant = fit_scaled(examples.terms, examples.stood, examples.weight)
    return np.append(weights, constant)


def _token_offsets(examples: Examples, weights: Floats, tokens: NDArray[np.int64], prior: float) -> tuple[float, ...]:
    """What each token adds to the logit: a Newton step on its own examples from the shared model, under a prior."""
    chance = 1 / (1 + np.exp(-(examples.terms @ weights[:-1] + weights[-1])))
    size = int(max(examples.token.max(), tokens.max(initial=0))) + 1
    tokens_present = examples.token >= 0
    residual = np.bincount(
        examples.token[tokens_present], (examples.weight * (examples.stood - chance))[tokens_present], size
    )
    curvature = np.bincount(
        examples.token[tokens_present], (examples.weight * chance * (1 - chance))[tokens_present], size
    )
    return tuple(np.round(residual / (curvature + prior), DIGITS)[tokens].tolist())


def _unfold(weights: Floats, classes: int, width: int) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """Weights by class, the constant added to each, and the shared ones."""
    shared = len(weights) - 1
    blocks = weights[: classes * width].reshape(classes, width).copy()
    blocks[:, 0] += weights[-1]
    return tuple(map(tuple, blocks.tolist())), tuple(weights[classes * width : shared].tolist())


def _onward(traces: Sequence[Trace], gamma_max: int) -> tuple[float, ...]:
    """How often token ``d + 1`` stood where ``d`` did, as smoothed by one of each outcome."""
    reached, stood = np.ones(gamma_max) * 2, np.ones(gamma_max)
    for trace in traces:
        depth = np.arange(1, gamma_max + 1)
        judged = (trace.accepted[:, None] >= depth - 1) & (draft_caps(trace)[:, None] >= depth)
        reached += judged.sum(axis=0)
        stood += (judged & (trace.accepted[:, None] >= depth)).sum(axis=0)
    return tuple((stood / reached).tolist())


def _with_steps(numbers: StoppingNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]) -> StoppingNumbers:
    """Add chances and outcomes at steps: first at all positions, then at those that the policy so found would start a
    step from.

    The rate that the policy reaches over whole outputs then scales the rate that it finds on these steps.
    """
    for round_ in range(2):
        chances, accepted = [], []
        for trace, curve in zip(traces, costs, strict=True):
            rows = np.arange(trace.positions)
            if round_:
                rows = replay(trace, ThroughputStopping(numbers, trace.gamma_max, curve)).record.rows(trace)
            else:
                rows = rows[:: max(1, len(rows) // KEPT_STEPS)]
            chances.append(next_stand_chances(numbers, trace)[rows])
            accepted.append(trace.accepted[rows])
        joined, outcomes = np.concatenate(chances), np.concatenate(accepted)
        kept = np.linspace(0, len(joined) - 1, min(KEPT_STEPS, len(joined))).astype(np.int64)
        rounded = tuple(tuple(row) for row in np.round(joined[kept], DIGITS).tolist())
        numbers = replace(numbers, chances=rounded, accepted=tuple(outcomes[kept].tolist()))
    return _scaled(numbers, traces, costs)[0]


def _scaled(
    numbers: StoppingNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]
) -> tuple[StoppingNumbers, float]:
    """The numbers with their rate scaled to what the policy reaches over whole outputs; the mean logarithm of that."""
    numbers = replace(numbers, rate_scale=1.0)
    policies = [ThroughputStopping(numbers, trace.gamma_max, curve) for trace, curve in zip(traces, costs, strict=True)]
    speeds = [
        replay(trace, policy, curve).tokens_per_second
        for trace, policy, curve in zip(traces, policies, costs, strict=True)
    ]
    scales = [speed / policy.rate for speed, policy in zip(speeds, policies, strict=True)]
    return replace(numbers, rate_scale=float(np.mean(scales))), float(np.mean(np.log(speeds)))


def _trimming(numbers: StoppingNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]) -> StoppingNumbers:
    """The numbers with which the last drafted token is left out where it is not worth its verification, unless the
    policy is the slower for it on these traces."""
    trims, speed = _scaled(replace(numbers, trims=True), traces, costs)
    return trims if speed >= _scaled(numbers, traces, costs)[1] else numbers


def next_stand_chances(numbers: StoppingNumbers, trace: Trace) -> Floats:
    """``[P, gamma_max]`` ``S_j m_j`` at every position, ``j = 0 .. gamma_max - 1``."""
    models, stand, chances = AcceptanceModels(numbers), np.ones(trace.positions), []
    for state in islice(states(text_view(trace)), trace.gamma_max):
        if state.depth:
            stand = stand * models.all_stand(state)
        chances.append(stand * models.all_next_stand(state))
    return np.stack(chances, axis=1)


def with_decision_times(numbers: StoppingNumbers, costs: CostCurve, gamma_max: int) -> StoppingNumbers:
    """The numbers with their decision times: as timed in the live loop, else measured here on made-up steps."""
    times = measured_decision(costs, STOPPING) or decision_times(
        ThroughputStopping(numbers, gamma_max, costs), gamma_max
    )
    return replace(
        numbers,
        decision_seconds=times.token,
        step_decision_seconds=times.step + TIMED_LENGTH * times.committed,
        reading_seconds=times.reading,
    )


def common_gamma_max(traces: Sequence[Trace]) -> int:
    """The longest draft of all traces.

    Raises:
        TraceError: if they differ in it.
    """
    widths = {trace.gamma_max for trace in traces}
    if len(widths) != 1:
        raise TraceError(f"fit on traces of one gamma_max, not of {sorted(widths) or 'none'}")
    return widths.pop()


def common_vocabulary(costs: Sequence[CostCurve], policy: str = STOPPING) -> str:
    """The vocabulary of all cost curves, for a policy that knows tokens by their ids.

    Raises:
        TraceError: if they are of different ones.
    """
    vocabularies = {curve.vocabulary for curve in costs}
    if len(vocabularies) != 1:
        raise TraceError(
            f"the traces are of pairs with different vocabularies, and {policy} knows tokens by their ids: fit each by "
            "itself"
        )
    return vocabularies.pop()


def _join(parts: Sequence[Examples]) -> Examples:
    return Examples(*map(np.concatenate, zip(*parts, strict=True)))


@register_fit(STOPPING)
def _fit(traces: Sequence[Trace], costs: Sequence[CostCurve], options: FitOptions) -> FittedPolicy:
    return fit_stopping(traces, costs, horizon=options.horizon, online=options.online)
