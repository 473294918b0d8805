"""Any policy run on a recorded trace, step by step as the live loop would, without a model.

Greedy output does not depend on how far one drafts, and drafters start from the committed text at every step. So a dense
trace holds the outcome of every step that any policy could take, and the replay is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftgauge.policies.base import Policy, Signal, SignalArrays, StatelessPolicy, Step, needs_signals
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


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

    Attributes:
        steps: steps taken.
        drafted, accepted, committed: tokens.
        seconds: modelled; NaN without a cost curve.
        histogram: ``[gamma_max + 1]`` number of steps with 0, 1, ... accepted tokens.
        record: the single steps.
    """

    steps: Ints
    drafted: Ints
    accepted: Ints
    committed: Ints
    seconds: Floats
    histogram: Ints
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
        drafted = int(self.drafted.sum())
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
    if isinstance(policy, StatelessPolicy):
        signals = SignalArrays(trace.confidence, trace.entropy, trace.margin)
        return replay_lengths(trace, policy.lengths(signals), costs, needs_signals(policy))
    caps = draft_caps(trace)
    steps = [step for prompt in range(len(trace.prompts)) for step in _prompt_steps(trace, prompt, caps, policy)]
    rows, drafted = np.array(steps, np.int64).reshape(-1, 2).T
    return _tally(trace, rows, drafted, costs, needs_signals(policy))


def replay_fixed_all(trace: Trace, costs: CostCurve | None = None) -> list[Replay]:
    """The replays of all fixed lengths; entry ``g`` drafts ``g`` tokens, 0 to ``gamma_max``."""
    return [replay_lengths(trace, np.full(trace.positions, gamma), costs) for gamma in range(trace.gamma_max + 1)]


def replay_lengths(trace: Trace, lengths: Ints, costs: CostCurve | None = None, looks: bool = False) -> Replay:
    """Replay with the draft length wanted at every position, ``[positions]``, given beforehand.

    ``looks`` says that the lengths were found by looking at signals, which costs time.
    """
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
    return _tally(trace, visited, drafted[visited], costs, looks)


def draft_caps(trace: Trace) -> Ints:
    """``[positions]`` the most tokens that a step can draft there, whatever the policy.

    A step leaves room for the target's own token under ``max_new_tokens``, and drafts no more than the drafter had to propose.
    That the output stops before the limit is not known to it.
    """
    return np.minimum(trace.drafted, trace.max_new_tokens - 1 - positions_in_prompt(trace))


def positions_in_prompt(trace: Trace) -> Ints:
    """``[positions]`` output tokens committed at each row."""
    starts: Ints = np.repeat(trace.offsets[:-1], np.diff(trace.offsets))
    return np.arange(trace.positions) - starts


def context_lengths(trace: Trace) -> Ints:
    """``[positions]`` prompt and committed output tokens at each row: the context length that steps are costed at."""
    prompt_tokens = np.array([prompt.prompt_tokens for prompt in trace.prompts], np.int64)
    return np.repeat(prompt_tokens, np.diff(trace.offsets)) + positions_in_prompt(trace)


def prompt_of_rows(trace: Trace) -> Ints:
    """``[positions]`` place of each row's prompt in ``trace.prompts``."""
    return np.repeat(np.arange(len(trace.prompts)), np.diff(trace.offsets))


def sum_by_prompt(prompt: Ints, values: ArrayLike, count: int) -> Floats:
    """Sums ``[count]`` of values over the rows or steps of each prompt."""
    return np.bincount(prompt, np.asarray(values, np.float64), count).astype(np.float64, copy=False)


def _prompt_steps(trace: Trace, prompt: int, caps: Ints, policy: Policy) -> Iterator[tuple[int, int]]:
    """Ask a policy token by token, as the live loop does; yields the row and draft length of each step of one prompt."""
    first, end = trace.offsets[prompt : prompt + 2].tolist()
    limits, accepts = caps[first:end].tolist(), trace.accepted[first:end].tolist()
    looks = needs_signals(policy)
    shown, entropies = _signals(trace, first, end) if looks else ([], [])
    policy.reset()
    position, length = 0, end - first
    while position < length:
        most = min(policy.limit(), limits[position])
        signals = _draft(policy, shown[position], most) if looks else []
        drafted = len(signals) if looks else most
        accepted = min(drafted, accepts[position])
        committed = min(accepted + 1, length - position)
        entropy = entropies[position + committed - 1] if looks else float("nan")
        policy.observe(Step(drafted, accepted, committed, signals, entropy))
        yield first + position, drafted
        position += committed


def _signals(trace: Trace, first: int, end: int) -> tuple[list[list[list[float]]], list[float]]:
    """Of some rows: confidence, entropy and margin by depth (``[rows][G][3]``), and the target's entropies ``[rows]``."""
    stacked = np.stack([trace.confidence[first:end], trace.entropy[first:end], trace.margin[first:end]], axis=-1)
    return stacked.tolist(), trace.target_entropy[first:end].tolist()


def _draft(policy: Policy, shown: list[list[float]], most: int) -> list[Signal]:
    """The signals of the tokens that a policy drafts; it is asked after each but the last possible one."""
    signals: list[Signal] = []
    for depth in range(1, most + 1):
        signals.append(Signal(depth, *shown[depth - 1]))
        if depth < most and not policy.keep_drafting(signals[-1]):
            break
    return signals


def _tally(trace: Trace, rows: Ints, drafted: Ints, costs: CostCurve | None, looks: bool) -> Replay:
    """The outcome of the steps that start at ``rows`` (``[S]``) and draft so many tokens."""
    prompt = np.searchsorted(trace.offsets, rows, side="right") - 1
    position = rows - trace.offsets[prompt]
    accepted = np.minimum(drafted, trace.accepted[rows])
    committed = np.minimum(accepted + 1, trace.offsets[prompt + 1] - rows)
    seconds = np.full(len(rows), np.nan)
    if costs is not None:
        prompt_tokens = np.array([p.prompt_tokens for p in trace.prompts], np.int64)
        seconds = costs.step_seconds(drafted, prompt_tokens[prompt] + position, looks)
    count = len(trace.prompts)
    return Replay(
        steps=np.bincount(prompt, minlength=count),
        drafted=sum_by_prompt(prompt, drafted, count).astype(np.int64),
        accepted=sum_by_prompt(prompt, accepted, count).astype(np.int64),
        committed=sum_by_prompt(prompt, committed, count).astype(np.int64),
        seconds=sum_by_prompt(prompt, seconds, count),
        histogram=np.bincount(accepted, minlength=trace.gamma_max + 1),
        record=StepRecord(prompt, position, drafted, accepted, committed, seconds),
    )
