"""Any policy run on a recorded trace, step by step as the live loop would, without a model.

Greedy output does not depend on how far one drafts, and drafters start from the committed text at every step. So a
dense trace holds the outcome of every step that any policy could take, and the replay is exact.

A trace of sampled decoding holds chances in place of outcomes. There the replay is the mean over walks drawn from them,
which estimates what decoding takes on average for these outputs. All policies walk by the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.signals import NO_SIGNALS, Reads, SignalName
from draftgauge.judging.speed import Speed
from draftgauge.policies.base import (
    DropsLast,
    Extends,
    Policy,
    ReadsText,
    Signal,
    SignalArrays,
    StatelessPolicy,
    Step,
    asks_after_each_token,
    begin,
    reads_of,
)
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import draws
from draftgauge.traces.trace import (
    SIGNALS,
    Trace,
    check_prompt_tokens,
    context_lengths,
    draft_caps,
    prompt_of_rows,
    remaining_rows,
    sum_by_prompt,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepRecord:
    """Every step of a replay in order, ``[S]`` each: its prompt's index, output tokens committed before it, modelled
    seconds (NaN without a cost curve). The rest are fields of :class:`~draftgauge.policies.base.Step`."""

    prompt: Ints
    position: Ints
    drafted: Ints
    accepted: Ints
    committed: Ints
    seconds: Floats
    appended: Ints
    accepted_text: Ints
    dropped: Ints

    def rows(self, trace: Trace) -> Ints:
        """``[S]`` the row of the trace that each step starts at."""
        return trace.offsets[self.prompt] + self.position


@dataclass(frozen=True)
class Replay:
    """What a policy did on a trace, by prompt (arrays ``[prompts]``, in the order of ``trace.prompts``) and in total.

    Token counts are as in :class:`~draftgauge.policies.base.Step`, ``seconds`` modelled (NaN without a cost curve). On
    a trace of sampled decoding these are means over walks, in float64, and ``record`` is the first.
    """

    steps: Ints | Floats
    drafted: Ints | Floats
    accepted: Ints | Floats
    committed: Ints
    seconds: Floats
    record: StepRecord
    appended: Ints
    accepted_text: Ints
    dropped: Ints

    @property
    def tokens_per_step(self) -> float:
        return float(self.committed.sum() / self.steps.sum())

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens over modelled seconds; NaN without a cost curve."""
        return float(self.committed.sum() / self.seconds.sum())

    def speed(self, conversation: Ints, mask: NDArray[np.bool_] | slice = slice(None)) -> Speed:
        """By the ``conversation`` ``[prompts]`` of each prompt, of some prompts."""
        return Speed.by(conversation[mask], self.committed[mask], self.seconds[mask])


def can_replay(trace: Trace, policy: Policy) -> bool:
    """Whether a trace says how a policy does: a sampled one lacks the chances of tokens looked up in the text."""
    return trace.sampled is None or not isinstance(policy, Extends)


def replay(trace: Trace, policy: Policy, costs: CostCurve | None = None) -> Replay:
    """Run a policy over all prompts of a trace, in their order.

    Args:
        policy: reset before every prompt; give a new one, as some learn across prompts.
    """
    if not can_replay(trace, policy):
        raise TraceError(
            f"policy {type(policy).__name__} appends tokens that it looks up in the text, and a trace of sampled "
            "decoding does not hold the target's chances of those: replay it on a greedy trace, or run it live"
        )
    if trace.sampled is not None:
        return mean_of([_replay(walk, deepcopy(policy), costs, greedy=False) for walk in draws(trace)])
    return _replay(trace, policy, costs, greedy=True)


def _replay(trace: Trace, policy: Policy, costs: CostCurve | None, greedy: bool) -> Replay:
    if isinstance(policy, StatelessPolicy) and not isinstance(policy, DropsLast | Extends):
        reads = reads_of(policy)
        return replay_lengths(trace, policy.lengths(signal_arrays(trace, reads)), costs, reads)
    return replay_each(trace, [policy] * len(trace.prompts), costs, greedy)


def replay_each(trace: Trace, policies: Sequence[Policy], costs: CostCurve | None, greedy: bool = True) -> Replay:
    """Replay each prompt with a policy of its own, ``[prompts]``; all read the same signals."""
    if isinstance(policies[0], ReadsText):
        check_prompt_tokens(trace)
    caps = draft_caps(trace)
    steps = [step for n, policy in enumerate(policies) for step in prompt_steps(trace, n, caps, policy, greedy)]
    return walked(trace, Walk.of(steps), costs, reads_of(policies[0]))


def replay_fixed_all(trace: Trace, costs: CostCurve | None = None) -> list[Replay]:
    """Entry ``g`` is the replay of drafting ``g`` tokens, 0 to ``gamma_max``."""
    if trace.sampled is not None:
        return [mean_of(of_draws) for of_draws in zip(*(replay_fixed_all(w, costs) for w in draws(trace)), strict=True)]
    return [replay_lengths(trace, np.full(trace.positions, gamma), costs) for gamma in range(trace.gamma_max + 1)]


def plain_replay(trace: Trace, costs: CostCurve) -> Replay:
    """Plain decoding of each output, one token a step, in its own modelled seconds: no step of drafting nothing."""
    seconds = np.interp(context_lengths(trace), costs.contexts, costs.plain)
    nothing = replay_lengths(trace, np.zeros(trace.positions, np.int64))
    return replace(nothing, seconds=sum_by_prompt(prompt_of_rows(trace), seconds, len(trace.prompts)))


def replay_lengths(trace: Trace, lengths: Ints, costs: CostCurve | None = None, reads: Reads = NO_SIGNALS) -> Replay:
    """Replay with the draft length wanted at every position, ``[positions]``, given beforehand; ``reads`` are the
    signals that finding them takes."""
    if trace.sampled is not None:
        return mean_of([replay_lengths(walk, lengths, costs, reads) for walk in draws(trace)])
    drafted = np.clip(lengths, 0, draft_caps(trace))
    accepted = np.minimum(drafted, trace.accepted).astype(np.int64)
    next_row = (np.arange(trace.positions) + np.minimum(accepted + 1, remaining_rows(trace.offsets))).tolist()
    # A prompt's last step leads to the first row of the next prompt, so that one walk visits them all.
    rows = []
    row, end = 0, trace.positions
    while row < end:
        rows.append(row)
        row = next_row[row]
    visited = np.array(rows, np.int64)
    none = np.zeros_like(visited)
    return walked(trace, Walk(visited, drafted[visited], none, accepted[visited], none), costs, reads)


def mean_of(outcomes: Sequence[Replay]) -> Replay:
    names = ("steps", "drafted", "accepted", "seconds")
    means: dict[str, Any] = {name: np.mean([getattr(outcome, name) for outcome in outcomes], axis=0) for name in names}
    return replace(outcomes[0], **means)


class Walk(NamedTuple):
    """Steps in order, ``[S]`` each: the row that each starts at, and its tokens as in :class:`StepRecord`."""

    rows: Ints
    drafted: Ints
    appended: Ints
    accepted: Ints
    dropped: Ints

    @classmethod
    def of(cls, steps: Sequence[tuple[int, int, int, int, int]]) -> Walk:
        return cls(*np.array(steps, np.int64).reshape(-1, len(cls._fields)).T)


def walked(trace: Trace, walk: Walk, costs: CostCurve | None = None, reads: Reads = NO_SIGNALS) -> Replay:
    """The outcome of given steps of a policy that reads these signals."""
    rows, drafted, appended, accepted, dropped = walk
    prompt = np.searchsorted(trace.offsets, rows, side="right") - 1
    position = rows - trace.offsets[prompt]
    accepted_text = np.maximum(accepted - (drafted - dropped), 0)
    committed = np.minimum(accepted + 1, trace.offsets[prompt + 1] - rows)
    seconds = np.full(len(rows), np.nan)
    if costs is not None:
        seconds = costs.step_seconds(drafted, context_lengths(trace)[rows], reads, appended - dropped)
        seconds = seconds + costs.catch_up_seconds(backlogs(prompt, drafted, accepted, costs), drafted)
        seconds = seconds + costs.rollback_seconds(drafted + appended - dropped, accepted)
    count = len(trace.prompts)
    record = StepRecord(prompt, position, drafted, accepted, committed, seconds, appended, accepted_text, dropped)
    names = ("drafted", "accepted", "committed", "appended", "accepted_text", "dropped")
    tokens: dict[str, Any] = {n: sum_by_prompt(prompt, getattr(record, n), count).astype(np.int64) for n in names}
    seconds = sum_by_prompt(prompt, seconds, count)
    return Replay(steps=np.bincount(prompt, minlength=count), seconds=seconds, record=record, **tokens)


def backlogs(prompt: Ints, drafted: Ints, accepted: Ints, costs: CostCurve) -> Ints:
    """``[S]`` committed tokens that the drafter has to take in before each step; 1 at a prompt's first.

    Args:
        prompt: ``[S]`` of each step; the steps of a prompt are consecutive, in order.
        drafted, accepted: ``[S]`` tokens, the accepted ones with those that were looked up in the text.
    """
    first, waiting = np.append(True, prompt[1:] != prompt[:-1]), []
    backlog, most = 1, costs.backlog_max
    left = costs.backlog_after(1, drafted, accepted)  # where the step drafted
    for begins, gamma, taken, after in zip(*(a.tolist() for a in (first, drafted, accepted, left)), strict=True):
        backlog = 1 if begins else backlog
        waiting.append(backlog)
        backlog = after if gamma else min(backlog + taken + 1, most)
    return np.array(waiting, np.int64)


def best_fixed_gamma(trace: Trace, costs: CostCurve) -> int:
    """The shortest of the fastest fixed lengths; 0 where not drafting is best."""
    return _best_of(replay_fixed_all(trace, costs))


def _best_of(fixed: list[Replay]) -> int:
    return int(np.argmax([outcome.tokens_per_second for outcome in fixed]))


def signal_arrays(trace: Trace, reads: Reads) -> SignalArrays:
    """The signals of all positions, NaN for those that are not read."""
    unread = np.broadcast_to(np.float32(np.nan), trace.confidence.shape)
    return SignalArrays(**{name: getattr(trace, name) if name in reads else unread for name in SIGNALS})


def prompt_steps(
    trace: Trace, prompt: int, caps: Ints, policy: Policy, greedy: bool
) -> Iterator[tuple[int, int, int, int, int]]:
    """Ask a policy token by token, as the live loop does; yields each step's row and its tokens drafted, appended,
    accepted, dropped.

    Args:
        caps: ``[P]`` the most tokens that a step can draft.
        greedy: whether drafting is: a sampled token is never dropped (:class:`DropsLast`).
    """
    first, end = trace.offsets[prompt : prompt + 2].tolist()
    limits, accepts = caps[first:end].tolist(), trace.accepted[first:end].tolist()
    reads = reads_of(policy)
    asks, reads_text = asks_after_each_token(reads), SignalName.TEXT in reads
    arrays = signal_arrays(trace, reads)
    token = trace.draft_token if reads_text else np.broadcast_to(np.int32(-1), trace.draft_token.shape)
    fields = (arrays.confidence, arrays.entropy, arrays.margin, token)  # of a signal, after its depth
    columns = [values[first:end].tolist() for values in fields] if asks else []
    target_entropy = trace.target_entropy[first:end].tolist()
    tokens = trace.token[first:end].tolist()
    extends = policy if isinstance(policy, Extends) else None
    drops = policy if greedy and isinstance(policy, DropsLast) else None
    told_last = isinstance(policy, Extends | DropsLast)  # also of the last possible token
    begin(policy, trace.prompts[prompt].prompt_token)
    position, length = 0, end - first
    while position < length:
        most = max(0, min(policy.limit(), limits[position]))
        signals: list[Signal] = []
        shown = zip(count(1), *(values[position] for values in columns), strict=False)
        for signal in map(Signal._make, islice(shown, most if asks else 0)):
            signals.append(signal)
            if (signal.depth < most or told_last) and not policy.keep_drafting(signal):
                break
        drafted = len(signals) if asks else most
        dropped = int(drops is not None and drafted > 0 and drops.drops_last())
        kept = drafted - dropped
        accepted, appended = min(kept, accepts[position]), 0
        room = trace.max_new_tokens - 1 - position - kept
        if extends is not None and room > 0:
            looked_up = list(extends.extend(room))[:room]
            appended = len(looked_up)
            agreeing = takewhile(
                lambda pair: pair[0] == pair[1], zip(looked_up, tokens[position + kept :], strict=False)
            )
            accepted += len(list(agreeing)) if accepted == kept else 0
        committed = min(accepted + 1, length - position)
        entropy = target_entropy[position + committed - 1] if SignalName.TARGET_ENTROPY in reads else float("nan")
        text = tokens[position : position + committed] if reads_text else ()
        policy.observe(Step(drafted, accepted, committed, signals, entropy, text, appended, dropped))
        yield first + position, drafted, appended, accepted, dropped
        position += committed
