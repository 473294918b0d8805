"""Any policy run on a recorded trace, step by step as the live loop would, without a model.

Greedy output does not depend on how far one drafts, and drafters start from the committed text at every step. So a
dense trace holds the outcome of every step that any policy could take, and the replay is exact.

A trace of sampled decoding holds chances in place of outcomes. There the replay is what decoding takes on average given
the outputs: exact (:mod:`draftgauge.replaying.expectation`) for policies that look at the step alone, and else the mean
over walks drawn from those chances.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import (
    DecisionSeconds,
    ExtendingTextPolicy,
    Extends,
    Policy,
    StatelessPolicy,
    TextPolicy,
    TrimmingTextPolicy,
    Trims,
    decision_of,
    reads_of,
)
from draftgauge.policies.stored_policies import stored_of
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.policies.suffix_columns import continuation_runs
from draftgauge.replaying.asking import prompt_steps
from draftgauge.replaying.backlog import backlogs
from draftgauge.replaying.expectation import expected_catch_up, expected_steps, lengths_by_refusal
from draftgauge.replaying.rows import context_lengths, draft_caps, draft_room, prompt_of_rows, sum_by_prompt
from draftgauge.replaying.views import check_prompt_tokens, derived_with, signal_arrays, text_view
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import drawn, draws
from draftgauge.traces.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_RUNS = "text runs"


class Charge(NamedTuple):
    """What a policy adds to the cost of its steps: the signals that it reads, and what its deciding takes."""

    reads: Reads = NO_SIGNALS
    decision: DecisionSeconds = DecisionSeconds()

    def of_steps(self, drafted: Ints, committed: Ints | int = 0, appended: Ints | int = 0) -> Floats:
        """Seconds of deciding in steps that draft, commit and append these numbers of tokens."""
        deciding: Floats = self.decision.step + self.decision.token * drafted.astype(np.float64)
        deciding = deciding + self.decision.committed * np.asarray(committed, np.float64)
        return deciding + self.decision.appended * np.asarray(appended, np.float64)

    def of_prompts(self, trace: Trace) -> Floats:
        """``[prompts]`` seconds of reading each prompt."""
        return self.decision.reading * np.array([prompt.prompt_tokens for prompt in trace.prompts], np.float64)


FREE = Charge()


@dataclass(frozen=True)
class Ends:
    """How policies end the drafts.

    Attributes:
        appended: ``[P]`` how many tokens, looked up in the text, are wanted after the drafted ones that are kept.
        trimmed: ``[P]`` how many drafted ones are left out, 0 or 1; 0 for none anywhere.
        stored: earlier texts that tokens are looked up in too.
    """

    appended: Ints
    trimmed: Ints | int = 0
    stored: StoredTexts | None = None


@dataclass(frozen=True)
class StepRecord:
    """Every step of a replay in order, ``S`` in all; each array is ``[S]``.

    Attributes:
        prompt: index of the prompt in ``trace.prompts``.
        position: output tokens committed before the step.
        drafted, accepted, committed, appended, accepted_text, trimmed: as in :class:`~draftgauge.policies.base.Step`.
        seconds: modelled; NaN without a cost curve.
    """

    prompt: Ints
    position: Ints
    drafted: Ints
    accepted: Ints
    committed: Ints
    seconds: Floats
    appended: Ints
    accepted_text: Ints
    trimmed: Ints

    def rows(self, trace: Trace) -> Ints:
        """``[S]`` the row of the trace that each step starts at."""
        return trace.offsets[self.prompt] + self.position


@dataclass(frozen=True)
class Replay:
    """What a policy did on a trace, by prompt (arrays ``[prompts]``, in the order of ``trace.prompts``) and in total.

    On a trace of sampled decoding these are expectations, in float64, and ``record`` is one walk of those that they
    stand for.

    Attributes:
        steps: steps taken.
        drafted, accepted, committed: tokens; the accepted ones with those that were looked up in the text.
        seconds: modelled; NaN without a cost curve.
        histogram: ``[gamma_max + 1]`` number of steps with 0, 1, ... accepted tokens.
        record: the single steps.
        appended, accepted_text: tokens that were looked up in the text, and how many of them were accepted.
        trimmed: drafted tokens that were left out.
    """

    steps: Ints | Floats
    drafted: Ints | Floats
    accepted: Ints | Floats
    committed: Ints
    seconds: Floats
    histogram: Ints | Floats
    record: StepRecord
    appended: Ints
    accepted_text: Ints
    trimmed: Ints

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens over steps."""
        return float(self.committed.sum() / self.steps.sum())

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens over modelled seconds; NaN without a cost curve."""
        return float(self.committed.sum() / self.seconds.sum())

    @property
    def acceptance_rate(self) -> float:
        """Accepted over proposed tokens, drafted and looked up; NaN if nothing was proposed."""
        proposed = float(self.drafted.sum() - self.trimmed.sum() + self.appended.sum())
        return float(self.accepted.sum() / proposed) if proposed else float("nan")


def can_replay(trace: Trace, policy: Policy) -> bool:
    """Whether a trace says how a policy does: one of sampled decoding does not hold the target's chances of tokens that
    a policy looks up in the text.
    """
    return trace.sampled is None or not isinstance(policy, Extends)


def replay(trace: Trace, policy: Policy, costs: CostCurve | None = None) -> Replay:
    """Run a policy over all prompts of a trace, in their order.

    Args:
        trace: dense.
        policy: reset before every prompt; give a new one, as some learn across prompts.
        costs: to model seconds.

    Raises:
        TraceError: if the policy proposes longer drafts than the cost curve was measured for, or appends tokens from
            the text to drafts of sampled decoding.
    """
    return _replayed(trace, policy, costs, trims=isinstance(policy, Trims))


def _replayed(trace: Trace, policy: Policy, costs: CostCurve | None, trims: bool) -> Replay:
    """:func:`replay`; of sampled decoding no drafted token is left out (:class:`~draftgauge.policies.base.Trims`)."""
    charge = Charge(reads_of(policy), decision_of(policy))
    if not can_replay(trace, policy):
        raise TraceError(
            f"policy {type(policy).__name__} appends tokens that it looks up in the text, and a trace of sampled "
            "decoding does not hold the target's chances of those: replay it on a greedy trace, or run it live"
        )
    if trace.sampled is not None:
        if isinstance(policy, StatelessPolicy) and not isinstance(policy, TextPolicy):
            return _expected(trace, lengths_by_refusal(trace, policy), costs, charge)
        return mean_of([_replayed(walked, deepcopy(policy), costs, trims=False) for walked in draws(trace)])
    by_text = isinstance(policy, ExtendingTextPolicy) or not isinstance(policy, Extends)
    asked_in_order = not by_text or (trims and not isinstance(policy, TrimmingTextPolicy))
    lengths = None if asked_in_order else _lengths_at_once(trace, policy)
    if lengths is not None:
        return replay_lengths(trace, lengths, costs, charge, _ends(trace, policy, lengths, charge, trims))
    caps = draft_caps(trace)
    steps = [step for prompt in range(len(trace.prompts)) for step in prompt_steps(trace, prompt, caps, policy, trims)]
    return walked(trace, Walk.of(steps), costs, charge)


def _ends(trace: Trace, policy: Policy, lengths: Ints, charge: Charge, trims: bool) -> Ends | None:
    """How a policy that decides at all positions at once ends the drafts that it wants; None if as they are."""
    if not isinstance(policy, ExtendingTextPolicy) and not trims:
        return None
    stored = stored_of(policy)
    view, drafted = text_view(trace, charge.reads, stored), np.clip(lengths, 0, draft_caps(trace))
    none = np.zeros_like(drafted)
    appended = policy.appended_lengths(view, drafted) if isinstance(policy, ExtendingTextPolicy) else none
    trimmed = policy.trimmed(view, drafted) if trims and isinstance(policy, TrimmingTextPolicy) else 0
    return Ends(appended, trimmed, stored)


def _lengths_at_once(trace: Trace, policy: Policy) -> Ints | None:
    """The draft length that a policy wants at every position; None if it must be asked step by step."""
    reads = reads_of(policy)
    if isinstance(policy, TextPolicy):
        return policy.text_lengths(text_view(trace, reads, stored_of(policy)))
    return policy.lengths(signal_arrays(trace, reads)) if isinstance(policy, StatelessPolicy) else None


def replay_fixed_all(trace: Trace, costs: CostCurve | None = None) -> list[Replay]:
    """The replays of all fixed lengths; entry ``g`` drafts ``g`` tokens, 0 to ``gamma_max``."""
    return [replay_lengths(trace, np.full(trace.positions, gamma), costs) for gamma in range(trace.gamma_max + 1)]


def replay_lengths(
    trace: Trace,
    lengths: Ints,
    costs: CostCurve | None = None,
    charge: Charge = FREE,
    ends: Ends | None = None,
) -> Replay:
    """Replay with the draft length wanted at every position, ``[positions]``, given beforehand.

    Args:
        trace: dense; greedy where drafts are not verified as they are.
        lengths: ``[P]``.
        costs: to model seconds.
        charge: what finding the lengths costs; by default nothing.
        ends: of the drafts; as they are by default.
    """
    if trace.sampled is not None:
        assert ends is None
        return _expected(trace, lengths[:, None], costs, charge)
    drafted = np.clip(lengths, 0, draft_caps(trace))
    trimmed: Ints = np.zeros_like(drafted)
    tails: Ints = trimmed
    if ends is None:
        accepted = np.minimum(drafted, trace.accepted).astype(np.int64)
    else:
        trimmed = trimmed + ends.trimmed
        tails = np.minimum(ends.appended, draft_room(trace) - drafted + trimmed)
        accepted = accepted_tokens(trace, drafted, Ends(tails, trimmed, ends.stored))
    committed = np.minimum(accepted + 1, remaining_rows(trace.offsets))
    next_row = (np.arange(trace.positions) + committed).tolist()
    # A prompt's last step leads to the first row of the next prompt, so that one walk visits them all.
    rows = []
    row, end = 0, trace.positions
    while row < end:
        rows.append(row)
        row = next_row[row]
    visited = np.array(rows, np.int64)
    walk = Walk(visited, *(values[visited] for values in (drafted, tails, accepted, trimmed)))
    return walked(trace, walk, costs, charge)


def accepted_tokens(trace: Trace, drafted: Ints, ends: Ends) -> Ints:
    """``[P]`` tokens accepted at every position of ``drafted`` ones less those left out, then of the text's
    continuation.

    ``min(d, a) + [a >= d] run(p, d, b)`` for ``d`` that are kept: where all of them stand, the looked-up ones follow
    the output's own text, so how many of these stand follows from the trace's tokens.
    """
    kept = drafted - ends.trimmed
    accepted: Ints = np.minimum(kept, trace.accepted).astype(np.int64)
    if ends.appended.any():
        run = text_runs(trace, ends.stored)[np.arange(trace.positions), kept].astype(np.int64)
        accepted += np.where(trace.accepted >= kept, np.minimum(ends.appended, run), 0)
    return accepted


def text_runs(trace: Trace, stored: StoredTexts | None = None) -> NDArray[np.int16]:
    """``[P, G + 1]`` tokens of the text's continuation that the target would accept after ``d`` accepted drafted ones;
    see :func:`~draftgauge.policies.suffix_columns.continuation_runs`.

    Raises:
        TraceError: if the trace was recorded without the prompts' tokens.
    """
    derived = derived_with(trace, stored)
    if _RUNS not in derived:
        check_prompt_tokens(trace)
        prompts = [prompt.prompt_token for prompt in trace.prompts]
        derived[_RUNS] = continuation_runs(trace.token, trace.offsets, prompts, trace.gamma_max, stored)
    runs: NDArray[np.int16] = derived[_RUNS]
    return runs


def mean_of(outcomes: Sequence[Replay]) -> Replay:
    """The mean of replays of the same outputs; ``record`` is that of the first."""
    names = ("steps", "drafted", "accepted", "seconds", "histogram")
    means: dict[str, Any] = {name: np.mean([getattr(outcome, name) for outcome in outcomes], axis=0) for name in names}
    return replace(outcomes[0], **means)


def _expected(trace: Trace, lengths: Ints, costs: CostCurve | None, charge: Charge) -> Replay:
    """The expectation over all walks; lengths by position and refusal ``[P, G + 1]``, or by position ``[P, 1]``."""
    steps = expected_steps(trace, lengths, draft_room(trace))
    weight, prompt, count = steps.occupancy, prompt_of_rows(trace), len(trace.prompts)
    seconds, history = np.full(trace.positions, np.nan), np.zeros(trace.positions)
    if costs is not None:
        each = costs.step_seconds(steps.drafted, context_lengths(trace)[:, None], charge.reads)
        seconds = (steps.accepted * (each + charge.of_steps(steps.drafted))).sum(axis=1)
        history = expected_catch_up(trace, steps, costs)
    accepting = np.arange(trace.gamma_max + 1)
    return replace(
        replay_lengths(drawn(trace), lengths[:, -1], costs, charge),
        steps=sum_by_prompt(prompt, weight, count),
        drafted=sum_by_prompt(prompt, weight * (steps.accepted * steps.drafted).sum(axis=1), count),
        accepted=sum_by_prompt(prompt, weight * (steps.accepted @ accepting), count),
        seconds=sum_by_prompt(prompt, weight * seconds + history + charge.decision.committed, count)
        + charge.of_prompts(trace),
        histogram=weight @ steps.accepted,
    )


class Walk(NamedTuple):
    """Steps in order, ``[S]`` each: the row that each starts at, and its tokens as in :class:`StepRecord`."""

    rows: Ints
    drafted: Ints
    appended: Ints
    accepted: Ints
    trimmed: Ints

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int, int, int, int]]) -> Walk:
        """The steps one by one as columns."""
        return cls(*np.array(steps, np.int64).reshape(-1, len(cls._fields)).T)


def walked(trace: Trace, walk: Walk, costs: CostCurve | None = None, charge: Charge = FREE) -> Replay:
    """The outcome of given steps, with what the policy costs."""
    rows, drafted, appended, accepted, trimmed = walk
    prompt = np.searchsorted(trace.offsets, rows, side="right") - 1
    position = rows - trace.offsets[prompt]
    accepted_text = np.maximum(accepted - (drafted - trimmed), 0)
    beyond = appended - trimmed  # tokens verified and not drafted, less those drafted and not verified
    committed = np.minimum(accepted + 1, trace.offsets[prompt + 1] - rows)
    seconds = np.full(len(rows), np.nan)
    if costs is not None:
        seconds = costs.step_seconds(drafted, context_lengths(trace)[rows], charge.reads, beyond)
        seconds += charge.of_steps(drafted, committed, appended)
        seconds += costs.catch_up_seconds(backlogs(prompt, drafted, accepted, costs), drafted)
    count = len(trace.prompts)
    return Replay(
        steps=np.bincount(prompt, minlength=count),
        drafted=sum_by_prompt(prompt, drafted, count).astype(np.int64),
        accepted=sum_by_prompt(prompt, accepted, count).astype(np.int64),
        committed=sum_by_prompt(prompt, committed, count).astype(np.int64),
        seconds=sum_by_prompt(prompt, seconds, count) + charge.of_prompts(trace),
        histogram=np.bincount(accepted, minlength=trace.gamma_max + 1),
        record=StepRecord(prompt, position, drafted, accepted, committed, seconds, appended, accepted_text, trimmed),
        appended=sum_by_prompt(prompt, appended, count).astype(np.int64),
        accepted_text=sum_by_prompt(prompt, accepted_text, count).astype(np.int64),
        trimmed=sum_by_prompt(prompt, trimmed, count).astype(np.int64),
    )
