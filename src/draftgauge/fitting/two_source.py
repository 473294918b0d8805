"""Fit the rule of two sources to dense traces; see :mod:`draftgauge.policies.two_source` for what is fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.fitting.decision_times import decision_times
from draftgauge.fitting.logistic import DIGITS, fit_logistic
from draftgauge.fitting.registry import FitOptions, register_fit
from draftgauge.fitting.stopping import common_gamma_max, common_vocabulary, fit_models
from draftgauge.fitting.tail import Appended, fit_tail
from draftgauge.policies.base import measured_decision
from draftgauge.policies.fitted import FittedPolicy
from draftgauge.policies.stopping import SIGNALS
from draftgauge.policies.two_source import TWO_SOURCE, TwoSource
from draftgauge.policies.two_source_rule import Instead, TwoSourceNumbers
from draftgauge.policies.two_source_trace import decided_by, spoken_against
from draftgauge.replaying.rows import draft_caps
from draftgauge.replaying.simulate import Replay, replay, text_runs
from draftgauge.replaying.splits import prompt_keys
from draftgauge.replaying.views import text_view
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDS = 2
"""Rounds of fitting: the first on all positions alike, the second for those that the policy of the first reaches."""
KEPT_STEPS = 192
"""Steps of the fitting prompts that a fitted policy carries, to find its rate on any cost curve."""
LEAST_GAIN = 0.01
"""Chance below which an offset of a kept tail is left out."""
KAPPAS = (0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


def fit_two_source(
    traces: Sequence[Trace],
    costs: Sequence[CostCurve],
    *,
    horizon: int = 8,
    provenance: Mapping[str, Any] | None = None,
) -> FittedPolicy:
    """Fit the drafter's and the text's models of acceptance on some traces, and ``kappa`` by what the rule reaches.

    The examples of the tail are all tokens that the text foretells after a draft whose tokens all stand, as long as
    they are right, and the first wrong one. As in :func:`~draftgauge.fitting.stopping.fit_stopping` the policy of the
    first round is replayed, and in the second the states that it came to weigh more. Where one source alone is faster
    on these traces than every ``kappa`` the other one is not asked.

    Args:
        traces: dense and greedy, of the prompts to fit on, one for each pair or compression; of one ``gamma_max``.
        costs: of each trace.
        horizon: drafted tokens that the policy looks ahead.
        provenance: how, for the reader of the file.

    Raises:
        TraceError: if there is nothing to learn from, the traces differ in ``gamma_max``, lack the prompts' tokens or
            are of sampled decoding.
    """
    if any(trace.sampled is not None for trace in traces):
        raise TraceError(
            "two-source looks tokens up in the text, and a trace of sampled decoding does not hold the target's "
            "chances of those: fit it on runs recorded at temperature 0"
        )
    gamma_max, vocabulary = common_gamma_max(traces), common_vocabulary(costs, TWO_SOURCE)
    reach = [np.full(trace.positions, gamma_max) for trace in traces]
    done: list[Appended] | None = None
    for round_ in range(ROUNDS):
        stopping = fit_models(traces, reach, gamma_max, recalibrate=round_ > 0)
        stopping = replace(stopping, horizon=horizon, vocabulary=vocabulary)
        tail = fit_tail(traces, stopping, done)
        numbers = TwoSourceNumbers(stopping, tail)
        numbers = with_kappa(replace(numbers, instead=fit_instead(traces, numbers)), traces, costs)
        done = [_done(numbers, trace, curve) for trace, curve in zip(traces, costs, strict=True)]
        reach = [each.drafted for each in done]
    numbers = with_decision_times(numbers, costs[0], gamma_max)
    prompts = dict.fromkeys(key for trace in traces for key in prompt_keys(trace))
    return FittedPolicy(TWO_SOURCE, gamma_max, SIGNALS, asdict(numbers), dict(provenance or {}), tuple(prompts))


def fit_instead(traces: Sequence[Trace], numbers: TwoSourceNumbers) -> tuple[float, ...]:
    """Weights of :class:`~draftgauge.policies.two_source_rule.Instead`; none where there is nothing to learn them from.

    An example is a drafted token whose forerunners all stand and in whose place the text foretells another one.
    """
    terms, stood = [np.zeros((0, len(Instead._fields) - 1))], [np.zeros(0, np.bool_)]
    for trace in traces:
        view, runs, caps = text_view(trace), text_runs(trace), draft_caps(trace)
        decided = decided_by(view, numbers)
        for depth in range(1, trace.gamma_max + 1):
            judged = (trace.accepted >= depth - 1) & (caps >= depth)
            rows = np.flatnonzero(judged & spoken_against(view, depth))
            known = decided.instead(depth, rows)
            terms.append(np.stack([known.text, known.draft], axis=1))
            stood.append(runs[rows, depth - 1] > 0)
    joined, outcomes = np.concatenate(terms), np.concatenate(stood)
    if len(set(outcomes.tolist())) < 2:
        return ()
    weights, constant = fit_logistic(joined, outcomes)
    return (constant, *weights.tolist())


def with_kappa(numbers: TwoSourceNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]) -> TwoSourceNumbers:
    """Add the kept steps and the ``kappa``, or the one source, with which the rule is fastest on these traces; every
    drafted token is verified where that is faster.
    """
    kept = with_steps(numbers, traces, costs)
    candidates = [replace(kept, kappa=kappa) for kappa in KAPPAS]
    best = _fastest(candidates, traces, costs)
    alone = (replace(kept, sources=source, instead=()) for source in ("model", "text"))
    return with_steps(_fastest([best, replace(best, instead=()), *alone], traces, costs), traces, costs)


def _fastest(
    candidates: Sequence[TwoSourceNumbers], traces: Sequence[Trace], costs: Sequence[CostCurve]
) -> TwoSourceNumbers:
    speeds = [_speed(each, traces, costs) for each in candidates]
    return candidates[max(range(len(candidates)), key=speeds.__getitem__)]


def _speed(numbers: TwoSourceNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]) -> float:
    """The mean of the logarithms of what the rule reaches on each trace."""
    outcomes = (_replayed(numbers, trace, curve) for trace, curve in zip(traces, costs, strict=True))
    return float(np.mean([math.log(outcome.tokens_per_second) for outcome in outcomes]))


def _replayed(numbers: TwoSourceNumbers, trace: Trace, costs: CostCurve) -> Replay:
    return replay(trace, TwoSource(numbers, trace.gamma_max, costs), costs)


def _done(numbers: TwoSourceNumbers, trace: Trace, costs: CostCurve) -> Appended:
    record = _replayed(numbers, trace, costs).record
    rows = record.rows(trace)
    drafted, tail = np.full(trace.positions, -1), np.zeros(trace.positions, np.bool_)
    drafted[rows], tail[rows] = record.drafted, record.appended > 0
    kept = drafted.copy()
    kept[rows] -= record.trimmed
    return Appended(drafted, kept, tail)


def with_steps(numbers: TwoSourceNumbers, traces: Sequence[Trace], costs: Sequence[CostCurve]) -> TwoSourceNumbers:
    """Add chances and outcomes at steps: first at positions evenly apart, then at those that the policy so found would
    start a step from. The rate that the policy reaches over whole outputs then scales the rate that it finds on these.
    """
    numbers = replace(numbers, stopping=replace(numbers.stopping, rate_scale=1.0))
    for round_ in range(2):
        rows = [
            np.flatnonzero(_done(numbers, trace, curve).drafted >= 0) if round_ else np.arange(trace.positions)
            for trace, curve in zip(traces, costs, strict=True)
        ]
        numbers = _kept(numbers, traces, rows)
    scales = [
        _replayed(numbers, trace, curve).tokens_per_second / TwoSource(numbers, trace.gamma_max, curve).rate
        for trace, curve in zip(traces, costs, strict=True)
    ]
    return replace(numbers, stopping=replace(numbers.stopping, rate_scale=float(np.mean(scales))))


def _kept(numbers: TwoSourceNumbers, traces: Sequence[Trace], rows: Sequence[Ints]) -> TwoSourceNumbers:
    """The numbers with a sample of the steps that start at some rows of each trace."""
    total = sum(map(len, rows))
    chosen = np.linspace(0, total - 1, min(KEPT_STEPS, total)).astype(np.int64)
    chances: list[tuple[float, ...]] = []
    accepted: list[int] = []
    tails: list[tuple[tuple[float, ...], ...]] = []
    runs: list[tuple[int, ...]] = []
    begin = 0
    for trace, own in zip(traces, rows, strict=True):
        at = own[chosen[(chosen >= begin) & (chosen < begin + len(own))] - begin]
        begin += len(own)
        model_chances, sums, _ = decided_by(text_view(trace), numbers)
        chances += [tuple(row) for row in np.round(model_chances[at], DIGITS).tolist()]
        accepted += trace.accepted[at].tolist()
        gains = [np.diff(np.nan_to_num(each.running[at], neginf=0.0), axis=1, prepend=0.0) for each in sums]
        for step in range(len(at)):
            ragged = (np.round(each[step], DIGITS) for each in gains)
            tails.append(tuple(tuple(row[: _likely(row)].tolist()) for row in ragged))
        runs += [tuple(row) for row in text_runs(trace)[at].tolist()]
    stopping = replace(numbers.stopping, chances=tuple(chances), accepted=tuple(accepted))
    return replace(numbers, stopping=stopping, tails=tuple(tails), runs=tuple(runs))


def _likely(gains: Floats) -> int:
    """How many offsets of a tail come before the first whose chance is small."""
    small = gains < LEAST_GAIN
    return int(small.argmax()) if small.any() else len(gains)


def with_decision_times(numbers: TwoSourceNumbers, costs: CostCurve, gamma_max: int) -> TwoSourceNumbers:
    """The numbers with their decision times: as timed in the live loop, else measured here on made-up steps."""
    times = measured_decision(costs, TWO_SOURCE) or decision_times(TwoSource(numbers, gamma_max, costs), gamma_max)
    stopping = replace(
        numbers.stopping,
        decision_seconds=times.token,
        step_decision_seconds=times.step,
        reading_seconds=times.reading,
    )
    return replace(numbers, stopping=stopping, committed_seconds=times.committed)


@register_fit(TWO_SOURCE)
def _fit(traces: Sequence[Trace], costs: Sequence[CostCurve], options: FitOptions) -> FittedPolicy:
    if options.online:
        raise DraftgaugeError("two-source does not go on calibrating while it runs: leave out --online")
    return fit_two_source(traces, costs, horizon=options.horizon)
