"""Any policy run on a recorded trace, step by step as the live loop would, without a model.

Greedy output does not depend on how far one drafts, and drafters start from the committed text at every step. So a
dense trace holds the outcome of every step that any policy could take, and the replay is exact.

A trace of sampled decoding holds chances in place of outcomes. There the replay is what decoding takes on average given
the outputs: exact (:mod:`draftgauge.replay.expectation`) for policies that look at the step alone, and else the mean
over walks drawn from those chances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import NO_SIGNALS, OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.policies.base import (
    DecisionSeconds,
    Policy,
    ReadsText,
    Signal,
    SignalArrays,
    StatelessPolicy,
    Step,
    TextPolicy,
    TextView,
    asks_after_each_token,
    begin,
    decision_of,
    reads_of,
)
from draftgauge.replay.backlog import backlogs
from draftgauge.replay.expectation import expected_catch_up, expected_steps, lengths_by_refusal
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import drawn, draws
from draftgauge.traces.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Charge(NamedTuple):
    """What a policy adds to the cost of its steps: the signals that it reads, and what its deciding takes."""

    reads: Reads = NO_SIGNALS
    decision: DecisionSeconds = DecisionSeconds()

    def of_steps(self, drafted: Ints) -> Floats:
        """Seconds of deciding in steps that draft so many tokens."""
        return self.decision.step + self.decision.token * drafted.astype(np.float64)

    def of_prompts(self, trace: Trace) -> Floats:
        """``[prompts]`` seconds of reading each prompt."""
        return self.decision.reading * np.array([prompt.prompt_tokens for prompt in trace.prompts], np.float64)


@dataclass(frozen=True)
class StepRecord:
    """Every step of a replay in order, ``S`` in all; each array is ``[S]``.

    Attributes:
        prompt: index of the prompt in ``trace.prompts``.
        position: output tokens committed before the step.
        drafted, accepted, committed: as in :class:`~draftgauge.policies.base.Step`.
        seconds: modelled; NaN without a cost curve.
    """

    prompt: Ints
    position: Ints
    drafted: Ints
    accepted: Ints
    committed: Ints
    seconds: Floats


@dataclass(frozen=True)
class Replay:
    """What a policy did on a trace, by prompt (arrays ``[prompts]``, in the order of ``trace.prompts``) and in total.

    On a trace of sampled decoding these are expectations, in float64, and ``record`` is one walk of those that they
    stand for.

    Attributes:
        steps: steps taken.
        drafted, accepted, committed: tokens.
        seconds: modelled; NaN without a cost curve.
        histogram: ``[gamma_max + 1]`` number of steps with 0, 1, ... accepted tokens.
        record: the single steps.
    """

    steps: Ints | Floats
    drafted: Ints | Floats
    accepted: Ints | Floats
    committed: Ints
    seconds: Floats
    histogram: Ints | Floats
    record: StepRecord

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
        """Accepted over drafted tokens; NaN if nothing was drafted."""
        drafted = float(self.drafted.sum())
        return float(self.accepted.sum() / drafted) if drafted else float("nan")


def replay(trace: Trace, policy: Policy, costs: CostCurve | None = None) -> Replay:
    """Run a policy over all prompts of a trace, in their order.

    Args:
        trace: dense.
        policy: reset before every prompt; give a new one, as some learn across prompts.
        costs: to model seconds.

    Raises:
        TraceError: if the policy drafts longer than the cost curve was measured.
    """
    charge = Charge(reads_of(policy), decision_of(policy))
    if trace.sampled is not None:
        if isinstance(policy, StatelessPolicy) and not isinstance(policy, TextPolicy):
            return _expected(trace, lengths_by_refusal(trace, policy), costs, charge)
        return mean_of([replay(walked, deepcopy(policy), costs) for walked in draws(trace)])
    lengths = _lengths_at_once(trace, policy)
    if lengths is not None:
        return replay_lengths(trace, lengths, costs, charge)
    caps = draft_caps(trace)
    steps = [step for prompt in range(len(trace.prompts)) for step in _prompt_steps(trace, prompt, caps, policy)]
    rows, drafted = np.array(steps, np.int64).reshape(-1, 2).T
    return _tally(trace, rows, drafted, costs, charge)


def _lengths_at_once(trace: Trace, policy: Policy) -> Ints | None:
    """The draft length that a policy wants at every position; None if it must be asked step by step."""
    reads = reads_of(policy)
    if isinstance(policy, TextPolicy):
        return policy.text_lengths(text_view(trace, reads))
    return policy.lengths(_signal_arrays(trace, reads)) if isinstance(policy, StatelessPolicy) else None


def text_view(trace: Trace, reads: Reads = OF_DRAFTED_TOKENS) -> TextView:
    """A trace as policies that read text, and these signals, see it.

    Raises:
        TraceError: if the trace was recorded without the prompts' tokens.
    """
    _check_prompt_tokens(trace)
    prompt_tokens = [prompt.prompt_token for prompt in trace.prompts]
    return TextView(
        _signal_arrays(trace, reads), trace.draft_token, trace.token, trace.offsets, prompt_tokens, trace.derived
    )


def _signal_arrays(trace: Trace, reads: Reads) -> SignalArrays:
    """The signals of all positions, NaN for those that are not read."""
    unread = np.broadcast_to(np.float32(np.nan), trace.confidence.shape)
    return SignalArrays(
        confidence=trace.confidence if SignalName.CONFIDENCE in reads else unread,
        entropy=trace.entropy if SignalName.ENTROPY in reads else unread,
        margin=trace.margin if SignalName.MARGIN in reads else unread,
    )


def _check_prompt_tokens(trace: Trace) -> None:
    lacking = sum(len(prompt.prompt_token) != prompt.prompt_tokens for prompt in trace.prompts)
    if lacking:
        raise TraceError(
            f"the policy reads the text, and the trace lacks the prompt tokens of {lacking} of "
            f"{len(trace.prompts)} prompts (traces of "
            "earlier versions do): profile again into a new folder"
        )


def replay_fixed_all(trace: Trace, costs: CostCurve | None = None) -> list[Replay]:
    """The replays of all fixed lengths; entry ``g`` drafts ``g`` tokens, 0 to ``gamma_max``."""
    return [replay_lengths(trace, np.full(trace.positions, gamma), costs) for gamma in range(trace.gamma_max + 1)]


def replay_lengths(trace: Trace, lengths: Ints, costs: CostCurve | None = None, charge: Charge | None = None) -> Replay:
    """Replay with the draft length wanted at every position, ``[positions]``, given beforehand.

    ``charge`` is what finding the lengths costs; by default nothing.
    """
    if trace.sampled is not None:
        return _expected(trace, lengths[:, None], costs, charge or Charge())
    drafted = np.minimum(lengths, draft_caps(trace))
    committed = np.minimum(np.minimum(drafted, trace.accepted) + 1, remaining_rows(trace.offsets))
    next_row = (np.arange(trace.positions) + committed).tolist()
    # A prompt's last step leads to the first row of the next prompt, so that one walk visits them all.
    rows = []
    row, end = 0, trace.positions
    while row < end:
        rows.append(row)
        row = next_row[row]
    visited = np.array(rows, np.int64)
    return _tally(trace, visited, drafted[visited], costs, charge or Charge())


def mean_of(outcomes: Sequence[Replay]) -> Replay:
    """The mean of replays of the same outputs; ``record`` is that of the first."""
    names = ("steps", "drafted", "accepted", "seconds", "histogram")
    means: dict[str, Any] = {name: np.mean([getattr(outcome, name) for outcome in outcomes], axis=0) for name in names}
    return replace(outcomes[0], **means)


def _expected(trace: Trace, lengths: Ints, costs: CostCurve | None, charge: Charge) -> Replay:
    """The expectation over all walks with draft lengths by position and refusal, ``[P, G + 1]``, or by position alone,
    ``[P, 1]``.
    """
    steps = expected_steps(trace, lengths, _room(trace))
    weight, prompt, count = steps.occupancy, prompt_of_rows(trace), len(trace.prompts)
    seconds, catching_up = np.full(trace.positions, np.nan), np.zeros(trace.positions)
    if costs is not None:
        each = costs.step_seconds(steps.drafted, context_lengths(trace)[:, None], charge.reads)
        seconds = (steps.accepted * (each + charge.of_steps(steps.drafted))).sum(axis=1)
        catching_up = expected_catch_up(trace, steps, costs)
    accepting = np.arange(trace.gamma_max + 1)
    return replace(
        replay_lengths(drawn(trace), lengths[:, -1], costs, charge),
        steps=sum_by_prompt(prompt, weight, count),
        drafted=sum_by_prompt(prompt, weight * (steps.accepted * steps.drafted).sum(axis=1), count),
        accepted=sum_by_prompt(prompt, weight * (steps.accepted @ accepting), count),
        seconds=sum_by_prompt(prompt, weight * seconds + catching_up, count) + charge.of_prompts(trace),
        histogram=weight @ steps.accepted,
    )


def draft_caps(trace: Trace) -> Ints:
    """``[positions]`` the most tokens that a step can draft there, whatever the policy.

    A step leaves room for the target's own token under ``max_new_tokens``, and drafts no more than the drafter had to
    propose. That the output stops before the limit is not known to it.
    """
    return np.minimum(trace.drafted, _room(trace))


def _room(trace: Trace) -> Ints:
    """``[positions]`` tokens that may be drafted there, leaving room for the target's own under ``max_new_tokens``."""
    return trace.max_new_tokens - 1 - positions_in_prompt(trace)


def positions_in_prompt(trace: Trace) -> Ints:
    """``[positions]`` output tokens committed at each row."""
    starts: Ints = np.repeat(trace.offsets[:-1], np.diff(trace.offsets))
    return np.arange(trace.positions) - starts


def context_lengths(trace: Trace) -> Ints:
    """``[positions]`` prompt and committed output tokens at each row: the context length that steps are costed at."""
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    return np.repeat(prompt_tokens, np.diff(trace.offsets)) + positions_in_prompt(trace)


def prompt_of_rows(trace: Trace) -> Ints:
    """``[positions]`` index of each row's prompt in ``trace.prompts``."""
    return np.repeat(np.arange(len(trace.prompts)), np.diff(trace.offsets))


def sum_by_prompt(prompt: Ints, values: ArrayLike, count: int) -> Floats:
    """Sums ``[count]`` of values over the rows or steps of each prompt."""
    return np.bincount(prompt, np.asarray(values, np.float64), count).astype(np.float64, copy=False)


def _prompt_steps(trace: Trace, prompt: int, caps: Ints, policy: Policy) -> Iterator[tuple[int, int]]:
    """Ask a policy token by token, as the live loop does; yields the row and draft length of each step."""
    first, end = trace.offsets[prompt : prompt + 2].tolist()
    limits, accepts = caps[first:end].tolist(), trace.accepted[first:end].tolist()
    reads = reads_of(policy)
    asks, reads_entropy, reads_text = (
        asks_after_each_token(reads),
        SignalName.TARGET_ENTROPY in reads,
        SignalName.TEXT in reads,
    )
    columns = _read_columns(trace, slice(first, end), reads) if asks else []
    target_entropy = trace.target_entropy[first:end].tolist()
    tokens = trace.token[first:end].tolist()
    if isinstance(policy, ReadsText):
        _check_prompt_tokens(trace)
    begin(policy, trace.prompts[prompt].prompt_token)
    position, length = 0, end - first
    while position < length:
        most = min(policy.limit(), limits[position])
        signals = _draft(policy, [values[position] for values in columns], most) if asks else []
        drafted = len(signals) if asks else most
        accepted = min(drafted, accepts[position])
        committed = min(accepted + 1, length - position)
        entropy = target_entropy[position + committed - 1] if reads_entropy else float("nan")
        text = tokens[position : position + committed] if reads_text else ()
        policy.observe(Step(drafted, accepted, committed, signals, entropy, text))
        yield first + position, drafted
        position += committed


def _read_columns(trace: Trace, rows: slice, reads: Reads) -> list[list[list[float]]]:
    """The fields of a signal after its depth, each ``[rows, G]``; what is not read is as where nothing was drafted."""
    arrays = _signal_arrays(trace, reads)
    token = trace.draft_token[rows] if SignalName.TEXT in reads else np.full_like(trace.draft_token[rows], -1)
    return [
        *(values[rows].tolist() for values in (arrays.confidence, arrays.entropy, arrays.margin)),
        token.tolist(),
    ]


def _draft(policy: Policy, columns: list[list[float]], most: int) -> list[Signal]:
    """The signals of the tokens that a policy drafts; it is asked after each but the last possible one.

    ``columns``: the fields of a signal after its depth, each ``[G]``.
    """
    signals: list[Signal] = []
    keep_drafting = policy.keep_drafting
    for signal in map(Signal._make, islice(zip(count(1), *columns, strict=False), most)):
        signals.append(signal)
        if signal.depth < most and not keep_drafting(signal):
            break
    return signals


def replay_steps(trace: Trace, rows: Ints, drafted: Ints, costs: CostCurve | None = None) -> Replay:
    """The outcome of given steps: those that start at ``rows`` (``[S]``, in order) and draft so many tokens."""
    return _tally(trace, rows, drafted, costs, Charge())


def _tally(trace: Trace, rows: Ints, drafted: Ints, costs: CostCurve | None, charge: Charge) -> Replay:
    """The outcome of the steps that start at ``rows`` (``[S]``) and draft so many tokens."""
    prompt = np.searchsorted(trace.offsets, rows, side="right") - 1
    position = rows - trace.offsets[prompt]
    accepted = np.minimum(drafted, trace.accepted[rows])
    committed = np.minimum(accepted + 1, trace.offsets[prompt + 1] - rows)
    seconds = np.full(len(rows), np.nan)
    if costs is not None:
        prompt_tokens = np.array([p.prompt_tokens for p in trace.prompts], np.int64)
        contexts = prompt_tokens[prompt] + position
        seconds = costs.step_seconds(drafted, contexts, charge.reads) + charge.of_steps(drafted)
        seconds += costs.catch_up_seconds(backlogs(prompt, drafted, accepted, costs), drafted)
    count = len(trace.prompts)
    return Replay(
        steps=np.bincount(prompt, minlength=count),
        drafted=sum_by_prompt(prompt, drafted, count).astype(np.int64),
        accepted=sum_by_prompt(prompt, accepted, count).astype(np.int64),
        committed=sum_by_prompt(prompt, committed, count).astype(np.int64),
        seconds=sum_by_prompt(prompt, seconds, count) + charge.of_prompts(trace),
        histogram=np.bincount(accepted, minlength=trace.gamma_max + 1),
        record=StepRecord(prompt, position, drafted, accepted, committed, seconds),
    )
