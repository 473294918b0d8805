"""What decoding takes on average on a trace of sampled decoding, given its outputs: exactly, without drawing a single
coin.

Given the output, the acceptances at its positions are independent coins with the chances ``a``
(:mod:`draftgauge.traces.sampled`). A step that starts at ``s`` and drafts up to ``g`` tokens accepts exactly ``k`` of
them with the chance

    a(s) .. a(s + k - 1) (1 - a(s + k)) for k < g,        a(s) .. a(s + g - 1) for k = g,

and the next step starts at ``s + k + 1``. So the chance that *some* step starts at a position, its occupancy, follows
by a forward recursion along the output, and every mean is a sum over positions of occupancy times the mean of one step.

How far a policy drafts may depend on what it has drafted, refused tokens included. So a step has one draft length for
every depth of the first refusal, on the signals of the refused draft recorded there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.signals import SignalName
from draftgauge.policies.base import SignalArrays, StatelessPolicy, reads_of
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import path_lengths, reach_chances, refused_lengths, refused_signals
from draftgauge.traces.trace import Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ExpectedSteps:
    """The steps from every position of a trace; ``K = gamma_max + 1`` numbers of accepted tokens, 0 first.

    Attributes:
        occupancy: ``[P]`` chance that a step starts at the position.
        accepted: ``[P, K]`` chance that a step from there accepts 0, 1, .. tokens; a row sums to 1.
        drafted: ``[P, K]`` tokens that it then drafts; 0 where the chance is 0.
    """

    occupancy: Floats
    accepted: Floats
    drafted: Ints


def lengths_by_refusal(trace: Trace, policy: StatelessPolicy) -> Ints:
    """``[P, G + 1]`` draft lengths that a policy wants at every position: column ``k`` if ``k`` tokens are accepted and
    the next is refused, the last column if none is refused."""
    reads = [name in reads_of(policy) for name in (SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN)]
    lengths = []
    for depth in [*range(1, trace.gamma_max + 1), trace.gamma_max]:
        arrays = zip(reads, refused_signals(trace, depth), strict=True)
        lengths.append(policy.lengths(SignalArrays(*(a if read else np.full_like(a, np.nan) for read, a in arrays))))
    return np.stack(lengths, axis=1)


def expected_steps(trace: Trace, lengths: Ints, room: Ints) -> ExpectedSteps:
    """The occupancy recursion.

    Args:
        lengths: ``[P, G + 1]`` as of :func:`lengths_by_refusal`, or ``[P, 1]`` if they are the same however it goes.
        room: ``[P]`` most tokens that a step can draft there under the limit of output tokens.
    """
    positions, most = trace.positions, trace.gamma_max
    accepting = np.arange(most + 1)
    wanted = np.clip(lengths, 0, room[:, None])
    # Tokens of a draft of which none is refused.
    whole = np.minimum(wanted[:, -1], np.minimum(path_lengths(trace), most))[:, None]
    refused_at = np.minimum(np.arange(positions)[:, None] + accepting, positions - 1)
    refused = np.minimum(wanted, np.minimum(accepting + refused_lengths(trace)[refused_at], most))

    reach = reach_chances(trace)
    falls = np.concatenate([-np.diff(reach, axis=1), np.zeros((positions, 1))], axis=1)
    accepted = np.where(accepting < whole, falls, np.where(accepting == whole, reach, 0.0))
    drafted = np.where(accepting < whole, refused, whole)
    return ExpectedSteps(_occupancy(trace, accepted), accepted, np.where(accepted > 0, drafted, 0))


def expected_catch_up(trace: Trace, steps: ExpectedSteps, costs: CostCurve) -> Floats:
    """``[P]`` mean seconds that steps from each position take longer as the drafter has several tokens to take in.

    How many there are depends on the step before, so the occupancy is that of positions and backlogs together.
    """
    if not any(costs.catch_up):
        return np.zeros(trace.positions)
    backlog = np.arange(1, costs.backlog_max + 1)
    accepting = np.arange(steps.accepted.shape[1])
    added = (steps.accepted[:, None, :] * costs.catch_up_seconds(backlog[:, None], steps.drafted[:, None, :])).sum(
        axis=2
    )
    occupancy = np.zeros((trace.positions, costs.backlog_max))
    occupancy[trace.offsets[:-1], 0] = 1.0
    for rows, target, inside in _forward(trace, len(accepting)):
        after = costs.backlog_after(backlog[:, None], steps.drafted[rows][:, None, :], accepting)  # [rows, B, K]
        mass = occupancy[rows][:, :, None] * steps.accepted[rows][:, None, :]
        where = np.broadcast_to(target[:, None, :], after.shape)
        kept = np.broadcast_to(inside[:, None, :], after.shape)
        np.add.at(occupancy, (where[kept], after[kept] - 1), mass[kept])
    mean: Floats = (occupancy * added).sum(axis=1)
    return mean


def _occupancy(trace: Trace, accepted: Floats) -> Floats:
    """Mass moves from each position to those where the next step starts."""
    occupancy = np.zeros(trace.positions)
    occupancy[trace.offsets[:-1]] = 1.0
    for rows, target, inside in _forward(trace, accepted.shape[1]):
        # No two steps that start at the same position of different prompts, or end differently, lead to the same row.
        occupancy[target[inside]] += (occupancy[rows, None] * accepted[rows])[inside]
    return occupancy


def _forward(trace: Trace, outcomes: int) -> Iterator[tuple[Ints, Ints, NDArray[np.bool_]]]:
    """Forward over all prompts together: rows ``[n]``, the rows ``[n, outcomes]`` they lead to, and which exist."""
    starts, lengths = trace.offsets[:-1], np.diff(trace.offsets)
    ahead = np.arange(1, outcomes + 1)
    for position in range(int(lengths.max())):
        longer = lengths > position
        rows = starts[longer] + position
        target = rows[:, None] + ahead
        yield rows, target, target < trace.offsets[1:][longer][:, None]
