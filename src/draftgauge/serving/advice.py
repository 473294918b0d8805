"""Whether to speculate in an engine, how and how far: its settings on a trace with its costs, and how sure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.registry import make_policy
from draftgauge.replaying.evaluate import plain_seconds
from draftgauge.replaying.rows import context_lengths, sum_by_prompt
from draftgauge.replaying.simulate import Replay, replay, replay_lengths
from draftgauge.replaying.splits import Design
from draftgauge.serving.engines import FIXED, P_MIN, PLAIN, fixed_length, p_min_of
from draftgauge.statistics.paired import gain_resamples, ratio_interval
from draftgauge.traces.build import conversations
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

SIMPLER = 0.01  # a rule is advised only where it beats the best fixed length by more, where it is chosen

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SettingOutcome:
    """A setting (``plain``, ``fixed:4``, ``p-min:0.8,16`` or a policy) on the prompts that it is judged on.

    ``speedup`` is over plain decoding, ``low`` to ``high`` its 95% interval by prompt, ``chosen`` the same on the
    prompts that settings are chosen on; ``acceptance_rate`` is None if nothing was drafted; ``faster`` is the share of
    resamples in which it is faster than plain decoding.
    """

    setting: str
    speedup: float
    low: float
    high: float
    chosen: float
    tokens_per_step: float
    drafted_per_step: float
    acceptance_rate: float | None
    faster: float


@dataclass(frozen=True)
class Change:
    """What would change the answer.

    Attributes:
        drafting: the most that drafting may cost for speculation to pay, as a multiple of its cost; 0 where it would
            not pay if drafting were free, None where it is free and pays.
        acceptance: the least acceptance rate, the same at every depth, at which a fixed length pays; None if none does.
        accepted: that rate as recorded.
    """

    drafting: float | None
    acceptance: float | None
    accepted: float


@dataclass(frozen=True)
class EngineAdvice:
    """The answer for one engine and batch size."""

    outcomes: tuple[SettingOutcome, ...]  # of every setting tried
    advised: SettingOutcome
    best_length: int  # the best fixed length, 0 where not speculating is best
    sure: float  # share of resamples that agree whether to speculate
    change: Change


def advise_settings(design: Design, costs: CostCurve, settings: Sequence[str]) -> EngineAdvice:
    """Judge settings, ``plain`` among them, on a trace, with what a step costs in the engine.

    The setting is chosen on the design's training prompts where it has any, and quoted for the others.

    Raises:
        DraftgaugeError: for an unknown policy.
        TraceError: if the costs were measured up to less than the trace's ``gamma_max``.
    """
    if design.trace.sampled is not None:  # the recorded signals are then of refused drafts
        settings = [setting for setting in settings if not setting.startswith(P_MIN)]
    outcomes = tuple(_outcome(setting, design, costs) for setting in settings)
    fixed = [outcome for outcome in outcomes if fixed_length(outcome.setting) is not None]
    best = max(fixed, key=lambda outcome: (outcome.chosen, -(fixed_length(outcome.setting) or 0)))
    rule = max(outcomes, key=lambda outcome: outcome.chosen)
    advised = rule if rule.chosen > (1 + SIMPLER) * best.chosen else best
    drafting = [outcome for outcome in outcomes if outcome.setting != PLAIN]
    strongest = max(drafting, key=lambda outcome: outcome.chosen, default=advised)
    sure = advised.faster if advised.setting != PLAIN else 1 - strongest.faster
    return EngineAdvice(outcomes, advised, fixed_length(best.setting) or 0, sure, _change(design.trace, costs))


def _outcome(setting: str, design: Design, costs: CostCurve) -> SettingOutcome:
    outcome, seconds = _run(setting, design.trace, costs)
    plain = plain_seconds(design.trace, costs)
    chosen = float(plain.sum() / seconds.sum())
    if design.train is not None:
        chosen = float(plain_seconds(design.train, costs).sum() / _run(setting, design.train, costs)[1].sum())
    conversation = conversations(design.trace)
    count = int(conversation.max()) + 1
    spent, plain, tokens = (sum_by_prompt(conversation, part, count) for part in (seconds, plain, outcome.committed))
    ratio = ratio_interval(plain, spent)
    _, gains = gain_resamples(tokens, spent, tokens, plain)
    steps, drafted = float(outcome.steps.sum()), float(outcome.drafted.sum())
    return SettingOutcome(
        setting=setting,
        speedup=ratio.estimate,
        low=ratio.low,
        high=ratio.high,
        chosen=chosen,
        tokens_per_step=float(outcome.committed.sum()) / steps,
        drafted_per_step=drafted / steps,
        acceptance_rate=float(outcome.accepted.sum()) / drafted if drafted else None,
        faster=float(np.mean(gains > 0)),
    )


def _run(setting: str, trace: Trace, costs: CostCurve) -> tuple[Replay, Floats]:
    """A setting on all prompts of a trace, and its seconds ``[prompts]``."""
    if setting.startswith(P_MIN):
        return _p_min(trace, costs, *p_min_of(setting))
    length = fixed_length(setting)
    if length is None:
        outcome = replay(trace, make_policy(setting, trace.gamma_max, costs), costs)
    else:
        outcome = replay_lengths(trace, np.full(trace.positions, length), costs)
    return outcome, plain_seconds(trace, costs) if setting == PLAIN else outcome.seconds


def _p_min(trace: Trace, costs: CostCurve, p_min: float, longest: int) -> tuple[Replay, Floats]:
    """llama.cpp's rule: the first token below ``p_min`` ends the draft; it was drafted, and is not verified.

    ``common_speculative_impl_draft_simple::draft`` in llama.cpp's ``common/speculative.cpp``. Its probabilities are of
    the ten most likely tokens, the recorded ones of all, so it drafts a little further than this says.
    """
    sure = trace.confidence[:, :longest].astype(np.float64) >= p_min
    lengths = np.where(sure.all(axis=1), sure.shape[1], sure.argmin(axis=1))
    outcome = replay_lengths(trace, lengths, costs)
    record = outcome.record
    rows = record.rows(trace)
    possible = np.minimum(trace.drafted[rows], longest)
    in_vain = (record.drafted < possible) & (record.drafted == lengths[rows])
    table = np.asarray(costs.draft)
    further = np.diff(np.append(table, table[:, -1:], axis=1), axis=1)  # [C, G + 1] seconds of one token more
    row = len(costs.contexts) // 2
    wasted = np.where(in_vain, further[row][record.drafted], 0.0)
    return outcome, outcome.seconds + sum_by_prompt(record.prompt, wasted, len(trace.prompts))


def _change(trace: Trace, costs: CostCurve) -> Change:
    doubled = replace(costs, draft=tuple(tuple((2 * np.asarray(row)).tolist()) for row in costs.draft))
    plain, most, free = float(plain_seconds(trace, costs).sum()), 0.0, False
    for length in range(1, trace.gamma_max + 1):
        lengths = np.full(trace.positions, length)
        seconds = float(replay_lengths(trace, lengths, costs).seconds.sum())
        drafting = float(replay_lengths(trace, lengths, doubled).seconds.sum()) - seconds
        if drafting > 0:
            most = max(most, (plain - (seconds - drafting)) / drafting)
        else:  # the engine drafts for nothing, or no output has room for a draft
            free |= seconds < plain
    return Change(None if free else most, acceptance_to_pay(trace, costs), recorded_acceptance(trace))


def recorded_acceptance(trace: Trace) -> float:
    """The chance that a drafted token is accepted after those before it, over all positions and depths."""
    accepted = float(trace.accepted.sum())
    rejected = float((trace.accepted < trace.drafted).sum())
    return accepted / (accepted + rejected) if accepted + rejected else math.nan


def acceptance_to_pay(trace: Trace, costs: CostCurve) -> float | None:
    """The least constant chance of acceptance at which some fixed length pays on average over the positions of a trace;
    0 if one does without any, None if none does at 1.
    """
    contexts, lengths = context_lengths(trace), np.arange(1, trace.gamma_max + 1)
    plain = np.interp(contexts, costs.contexts, costs.plain).mean()
    steps = np.array([costs.step_seconds(int(length), contexts).mean() for length in lengths]) / plain
    if (steps < 1).any():
        return 0.0
    if not (lengths + 1 > steps).any():
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        committed = np.cumsum(middle ** np.arange(trace.gamma_max + 1))[1:]
        low, high = (low, middle) if (committed > steps).any() else (middle, high)
    return high


def batch_lengths(design: Design, curves: Mapping[int, CostCurve]) -> dict[int, int]:
    """The best fixed length at every batch size, chosen as :func:`advise_settings` does.

    All sequences of a batch draft the same length, as engines do, so a step's seconds are those of the whole batch, and
    the tokens those of one sequence times their number: the ratio to plain decoding is that of one sequence.
    """
    settings = [PLAIN, *(f"{FIXED}{length}" for length in range(1, design.trace.gamma_max + 1))]
    return {batch: advise_settings(design, costs, settings).best_length for batch, costs in curves.items()}
