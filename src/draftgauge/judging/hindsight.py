"""The bound of rules that draft, or look up as lookup and two-source do: least time, had every outcome been known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.judging.replay import Replay, Walk, mean_of, walked
from draftgauge.policies.ngrams import MOST_MATCHED, NgramIndex
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.sampled import draws
from draftgauge.traces.trace import (
    Trace,
    check_prompt_tokens,
    context_lengths,
    draft_caps,
    draft_room,
    prompt_of_rows,
    remaining_rows,
)

Ints = NDArray[np.int64]


def hindsight_optimum(trace: Trace, costs: CostCurve, text: bool = False, stored: StoredTexts | None = None) -> Replay:
    """Least modelled seconds over all choices of drafted and appended tokens, ``gamma_max`` together, at every step;
    exact.

    What a step takes depends on where it starts and on how many tokens the drafter has to take in. So the state is a
    position ``p`` of a prompt and a backlog ``q``. Backward dynamic programming over ``d`` drafted and ``b`` appended
    tokens, with ``T(N, .) = 0`` and

        ``T(p, q) = min over (d, b) of seconds(d, b, context at p) + catch_up(q) [d > 0] + T(p', q')``,

    where ``p' = min(p + accepted + 1, N)`` with ``accepted = min(d, a(p)) + [a(p) >= d] min(b, run(p, d))``
    (:func:`text_runs`). ``q'`` is the backlog that the step leaves. ``d`` goes up to what a live step could draft there
    (:func:`~draftgauge.traces.trace.draft_caps`), ``d + b`` up to the room under the limit of output tokens.
    Without ``text`` ``b`` is 0.

    On a trace of sampled decoding the outcomes are coins. The result is the mean of the optimum over draws of them,
    ``record`` that of the first draw: the trace's own rows.

    Args:
        trace: dense; greedy with ``text``.
        text: whether tokens that are looked up in the text may be appended to the drafted ones.
        stored: earlier texts in which tokens are looked up too.
    """
    if trace.sampled is not None:
        if text:
            raise TraceError(
                "a trace of sampled decoding does not hold the target's chances of the text's tokens: replay policies "
                "that look tokens up on a greedy trace, or run them live"
            )
        return mean_of([hindsight_optimum(drawn, costs) for drawn in draws(trace)])
    # [C] drafted and appended tokens of every choice, the fewest tokens first; the first proposes nothing.
    longest = trace.gamma_max
    pairs = [(d, b) for d in range(longest + 1) for b in range(longest + 1 - d if text else 1)]
    gammas, tails = np.array(sorted(pairs, key=lambda pair: (sum(pair), pair)), np.int64).T
    backlogs = np.arange(1, costs.backlog_max + 1)
    caps, left, contexts = draft_caps(trace), remaining_rows(trace.offsets), context_lengths(trace)
    room = draft_room(trace)
    runs = text_runs(trace, stored) if text else None
    shortest = int(contexts.min())
    cost_at = costs.step_seconds(gammas, np.arange(shortest, int(contexts.max()) + 1)[:, None], appended=tails)
    catch_up = costs.catch_up_seconds(backlogs[:, None], gammas)  # [B, C]

    best = np.zeros((trace.positions, len(backlogs)), np.int64)  # the best choice
    prompt = prompt_of_rows(trace)
    # Seconds left by prompt, by tokens left modulo the longest step's and one, and by backlog; none left: 0.
    ahead = trace.gamma_max + 2
    after = np.zeros((len(trace.prompts), ahead, len(backlogs)))
    # Rows grouped by how far they are from their end: all of a group depend on earlier groups only.
    order = np.argsort(left, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(left[order])) + 1):
        judged = trace.accepted[rows, None].astype(np.int64)
        accepted = np.minimum(gammas, judged)  # [rows, C]
        if runs is not None:
            accepted += np.where(judged >= gammas, np.minimum(tails, runs[rows[:, None], gammas]), 0)
        rest = np.maximum(left[rows, None] - accepted - 1, 0)
        owed = costs.backlog_after(backlogs[:, None], gammas, accepted[:, None, :]) - 1  # [rows, B, C]
        seconds = cost_at[contexts[rows] - shortest][:, None, :] + catch_up
        seconds = seconds + costs.rollback_seconds(gammas + tails, accepted)[:, None, :]
        ahead_of = after[prompt[rows, None, None], (rest % ahead)[:, None, :], owed]
        seconds += np.where(rest[:, None, :] > 0, ahead_of, 0.0)
        allowed = (gammas <= caps[rows, None]) & ((tails == 0) | (gammas + tails <= room[rows, None]))
        seconds = np.where(allowed[:, None, :], seconds, np.inf)
        best[rows] = seconds.argmin(axis=2)
        after[prompt[rows], left[rows[0]] % ahead] = seconds.min(axis=2)
    return _walk(trace, gammas[best], tails[best], costs, runs)


def _walk(trace: Trace, lengths: Ints, appended: Ints, costs: CostCurve, runs: Ints | None) -> Replay:
    """Replay with the best steps, ``[P, B]`` drafted and appended tokens."""
    steps: list[tuple[int, int, int, int, int]] = []
    for first, end in pairwise(trace.offsets.tolist()):
        row, backlog = first, 1
        while row < end:
            gamma, tail = int(lengths[row, backlog - 1]), int(appended[row, backlog - 1])
            accepted = min(gamma, int(trace.accepted[row]))
            if tail and runs is not None and accepted == gamma:
                accepted += min(tail, int(runs[row, gamma]))
            steps.append((row, gamma, tail, accepted, 0))
            row += accepted + 1
            backlog = int(costs.backlog_after(backlog, gamma, accepted))
    return walked(trace, Walk.of(steps), costs)


def text_runs(trace: Trace, stored: StoredTexts | None = None) -> Ints:
    """``[P, G + 1]`` how many tokens looked up in the text would be accepted after ``d`` accepted drafted ones, column
    ``d``, at most ``G - d``. They are looked up as in two-source; where none is drafted, as in lookup, if that gives
    more. They follow from the output alone, whatever drafts."""
    check_prompt_tokens(trace)
    longest = trace.gamma_max
    right = np.zeros((trace.positions, longest), np.bool_)  # whether the text predicts the token so far on
    runs, copied = np.zeros((trace.positions, longest + 1), np.int64), np.zeros(trace.positions, np.int64)
    index = NgramIndex(None if stored is None else stored.index)
    for number, prompt in enumerate(trace.prompts):
        first, end = trace.offsets[number : number + 2].tolist()
        output = trace.token[first:end].tolist()
        index.reset()
        index.extend(prompt.prompt_token)
        for position, token in enumerate(output):
            context = index.text[-MOST_MATCHED:]
            agreed = [a == b for a, b in zip(index.continuation(longest, 1), output[position:], strict=False)]
            copied[first + position] = [*agreed, False].index(False)
            for ahead, expected in enumerate(output[position : position + longest]):
                match = index.match(context[-MOST_MATCHED:])
                right[first + position, ahead] = match is not None and match.token == expected
                context.append(expected)
            index.extend([token])
    for depth in range(longest - 1, -1, -1):
        runs[:, depth] = np.where(right[:, depth], runs[:, depth + 1] + 1, 0)
    runs[:, 0] = np.maximum(runs[:, 0], copied)
    return runs
