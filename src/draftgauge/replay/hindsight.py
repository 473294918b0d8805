"""The bound of all policies: the least time in which a trace can be decoded, had every outcome been known."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from draftgauge.replay.simulate import Replay, context_lengths, draft_caps, mean_of, replay_steps
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import draws
from draftgauge.traces.trace import Trace


@dataclass(frozen=True)
class Hindsight:
    """The optimal choice of draft lengths.

    Attributes:
        lengths: ``[positions, backlogs]`` the best draft length at every position, also at those that the best path
            skips, where the drafter has 1, 2, ... committed tokens to take in; the shortest of equals.
        seconds_left: ``[positions, backlogs]`` least modelled seconds from there to the end of the prompt's output.
        replay: the best path; ``replay.record.drafted`` holds its draft lengths step by step, ``replay.seconds`` the
            least seconds of each prompt.
    """

    lengths: NDArray[np.int64]
    seconds_left: NDArray[np.float64]
    replay: Replay

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens over the least modelled seconds."""
        return self.replay.tokens_per_second


def hindsight_optimum(trace: Trace, costs: CostCurve) -> Hindsight:
    """Least modelled seconds over all choices of a draft length, 0 to ``gamma_max``, at every step; exact.

    What a step takes depends on where it starts and on how many tokens the drafter has to take in, so the state is a
    position ``p`` of a prompt and a backlog ``b``. Backward dynamic programming, with ``T(N, .) = 0`` and

        ``T(p, b) = min over g of seconds(g, context at p) + catch_up(b) [g > 0] + T(p', b')``,

    where ``p' = min(p + min(g, accepted(p)) + 1, N)``, ``b'`` is the backlog that the step leaves, and ``g`` goes up to
    what a live step could draft there (:func:`~draftgauge.replay.simulate.draft_caps`). What a step that drafts leaves
    does not depend on ``b``, so the best of them is the same for all: O(positions x (gamma_max + backlogs)).

    On a trace of sampled decoding the outcomes are coins: the mean of the optimum over draws of them, with the
    ``lengths`` and the ``replay.record`` of the first draw, that of the trace's own rows.

    Raises:
        TraceError: if the cost curve was measured up to less than the trace's ``gamma_max``.
    """
    if trace.sampled is not None:
        optima = [hindsight_optimum(drawn, costs) for drawn in draws(trace)]
        seconds = np.mean([optimum.seconds_left for optimum in optima], axis=0)
        return Hindsight(optima[0].lengths, seconds, mean_of([optimum.replay for optimum in optima]))
    gammas, backlogs = np.arange(trace.gamma_max + 1), np.arange(1, costs.backlog_max + 1)
    caps, left, contexts = draft_caps(trace), remaining_rows(trace.offsets), context_lengths(trace)
    shortest = int(contexts.min())
    cost_at = costs.step_seconds(gammas, np.arange(shortest, int(contexts.max()) + 1)[:, None])  # [contexts, G + 1]
    catch_up = costs.catch_up_seconds(backlogs, 1)  # [B]
    after_none = costs.backlog_after(backlogs, 0, 0) - 1

    lengths = np.zeros((trace.positions, len(backlogs)), np.int64)
    # The last row stands for the end of the output, for every prompt.
    seconds_left = np.zeros((trace.positions + 1, len(backlogs)))
    # Rows grouped by how far they are from their end: all of a group depend on earlier groups only.
    order = np.argsort(left, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(left[order])) + 1):
        accepted = np.minimum(gammas, trace.accepted[rows, None])  # [rows, G + 1]
        target = np.where(accepted + 1 < left[rows, None], rows[:, None] + accepted + 1, trace.positions)
        here = cost_at[contexts[rows] - shortest]
        drafting = here + seconds_left[target, costs.backlog_after(1, gammas, accepted) - 1]
        drafting[(gammas > caps[rows, None]) | (gammas == 0)] = np.inf
        best = drafting.argmin(axis=1)
        idle = here[:, :1] + seconds_left[target[:, 0]][:, after_none]  # [rows, B]
        speculating = drafting[np.arange(len(rows)), best][:, None] + catch_up
        lengths[rows] = np.where(idle <= speculating, 0, best[:, None])
        seconds_left[rows] = np.minimum(idle, speculating)
    return Hindsight(lengths, seconds_left[:-1], _walk(trace, lengths, costs))


def _walk(trace: Trace, lengths: NDArray[np.int64], costs: CostCurve) -> Replay:
    """Replay with the lengths ``[positions, backlogs]``."""
    caps = draft_caps(trace)
    rows, drafted = [], []
    for first, end in pairwise(trace.offsets.tolist()):
        row, backlog = first, 1
        while row < end:
            gamma = min(int(lengths[row, backlog - 1]), int(caps[row]))
            accepted = min(gamma, int(trace.accepted[row]))
            rows.append(row)
            drafted.append(gamma)
            row += accepted + 1
            backlog = int(costs.backlog_after(backlog, gamma, accepted))
    return replay_steps(trace, np.array(rows, np.int64), np.array(drafted, np.int64), costs)
