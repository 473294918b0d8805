"""The bound of all policies: the least time in which a trace can be decoded, had every outcome been known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftgauge.replay.simulate import Replay, context_lengths, draft_caps, mean_of, replay_lengths
from draftgauge.traces.build import remaining_rows
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import draws
from draftgauge.traces.trace import Trace


@dataclass(frozen=True)
class Hindsight:
    """The optimal choice of draft lengths.

    Attributes:
        lengths: ``[positions]`` the best draft length at every position, also at those that the best path skips; the
            shortest of equals.
        seconds_left: ``[positions]`` least modelled seconds from there to the end of the prompt's output.
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

    Backward dynamic programming over positions ``p`` of each prompt, with ``T(N) = 0`` and

        ``T(p) = min over g of seconds(g, context at p) + T(min(p + min(g, accepted(p)) + 1, N))``,

    where ``g`` goes up to what a live step could draft there (:func:`~draftgauge.replay.simulate.draft_caps`). All
    prompts together, one position after the other; O(positions x gamma_max).

    On a trace of sampled decoding the outcomes are coins: the mean of the optimum over draws of them, with the
        ``lengths`` and the
    ``replay.record`` of the first draw, that of the trace's own rows.

    Raises:
        TraceError: if the cost curve was measured up to less than the trace's ``gamma_max``.
    """
    if trace.sampled is not None:
        optima = [hindsight_optimum(drawn, costs) for drawn in draws(trace)]
        seconds = np.mean([optimum.seconds_left for optimum in optima], axis=0)
        return Hindsight(optima[0].lengths, seconds, mean_of([optimum.replay for optimum in optima]))
    gammas = np.arange(trace.gamma_max + 1)
    caps, left, contexts = draft_caps(trace), remaining_rows(trace.offsets), context_lengths(trace)
    shortest = int(contexts.min())
    cost_at = costs.step_seconds(gammas, np.arange(shortest, int(contexts.max()) + 1)[:, None])  # [contexts, G + 1]

    lengths = np.zeros(trace.positions, np.int64)
    seconds_left = np.zeros(trace.positions + 1)  # the last stands for the end of the output, for every prompt
    # Rows grouped by how far they are from their end: all of a group depend on earlier groups only.
    order = np.argsort(left, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(left[order])) + 1):
        committed = np.minimum(gammas, trace.accepted[rows, None]) + 1  # [rows, G + 1]
        target = np.where(committed < left[rows, None], rows[:, None] + committed, trace.positions)
        seconds = cost_at[contexts[rows] - shortest] + seconds_left[target]
        seconds[gammas > caps[rows, None]] = np.inf
        lengths[rows] = seconds.argmin(axis=1)
        seconds_left[rows] = seconds.min(axis=1)
    return Hindsight(lengths, seconds_left[:-1], replay_lengths(trace, lengths, costs))
