"""Sampled decoding on a trace: the chances of acceptance along an output, and drafts drawn from them.

Speculative sampling (Leviathan, Kalman and Matias 2023, appendix A.1; Chen et al. 2023, theorem 1) drafts ``d ~ q``,
accepts it with the chance ``min(1, p(d) / q(d))`` and else commits a draw from ``norm(max(p - q, 0))``. So the
committed token ``y`` and the event ``A`` that it is the drafted one have the joint law

    P(y, A) = min(p(y), q(y)),        P(y, not A) = max(p(y) - q(y), 0).

Two chances follow, which are not the same:

    acceptance   b = P(A) = sum_v min(p(v), q(v))            before the token is known,
    survival     a = P(A | y) = min(1, q(y) / p(y))          once it is.

What follows ``y`` does not depend on how it came. Hence, *given the whole output*, acceptances are independent coins
with the chances ``a``, whatever the policy. A walk over the output with such coins is the live process given that
output. Averaged over outputs it takes what live decoding takes on average.

Multiplying the ``b`` along the output is wrong. An accepted token has the law ``min(p, q) / b``, not ``p``, so after it
the next acceptance is likelier. What holds is

    P(k tokens accepted from s on) = E[a(s) ... a(s + k - 2) b(s + k - 1)] = E[a(s) ... a(s + k - 1)],

the first with less variance. So walks use ``a``. Rates by depth and the labels that a hazard is fitted to use ``b``,
weighted with the product of the ``a`` before it (:func:`path_chances`).

A policy that reads signals also sees the tokens drafted *after* a refused one, which no output shows. A refused token
has the law ``norm(max(q - p, 0))``, independent of the token committed in its place. So one *refused draft* a position
is recorded. A draft from ``s`` refused at depth ``j`` is the output's tokens ``s .. s + j - 2``, then the refused draft
of position ``s + j - 1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.parts import generator
from draftgauge.traces.trace import SIGNALS, SampledDrafts, Trace

DRAWS = 16  # that an average is taken over


def with_chances(trace: Trace, acceptance: NDArray[np.float32], survival: NDArray[np.float32]) -> Trace:
    """The trace of sampled decoding whose refused drafts are the rows of a trace; the chances are ``[P]``."""
    sampled = SampledDrafts(acceptance, survival, trace.draft_token, trace.confidence, trace.entropy, trace.margin)
    return replace(trace, sampled=sampled, **draw_rows(trace, sampled))


def drawn(trace: Trace, draw: int = 0) -> Trace:
    # A draw uses the same random numbers for a prompt in every trace and for every policy: comparisons are paired.
    assert trace.sampled is not None, "a greedy trace has nothing to draw"
    return replace(trace, sampled=None, **draw_rows(trace, trace.sampled, draw))


def draws(trace: Trace, count: int = DRAWS) -> Iterator[Trace]:
    return (drawn(trace, draw) for draw in range(count))


def draw_rows(trace: Trace, sampled: SampledDrafts, draw: int = 0) -> dict[str, Any]:
    """The columns ``drafted, accepted, draft_token, confidence, entropy, margin`` of one draw."""
    token, offsets = trace.token, trace.offsets
    # A position has one coin, whichever draft comes by: no walk drafts a position twice.
    coins = [generator(draw, "coins", prompt.index).random(prompt.output_tokens) for prompt in trace.prompts]
    uniform = np.concatenate(coins)
    refused = ~(uniform < sampled.survival)  # also where nothing could be drafted (NaN)
    row, depth = np.arange(len(token))[:, None], np.arange(sampled.draft_token.shape[1])
    stop = _next_true(refused, offsets)[:, None]
    follows = depth < stop - row
    source = np.where(follows, row + depth, np.minimum(stop, len(token) - 1))
    column = np.where(follows, 0, depth - (stop - row))
    over = ~follows & (stop == np.repeat(offsets[1:], np.diff(offsets))[:, None])
    draft_token = np.where(follows, token[source], sampled.draft_token[source, column])
    draft_token[over] = -1
    columns: dict[str, Any] = {name: getattr(sampled, name)[source, column] for name in SIGNALS}
    for values in columns.values():
        values[over] = np.nan
    drafted = (draft_token >= 0).sum(axis=1, dtype=np.int16)
    accepted = np.minimum(stop[:, 0] - row[:, 0], drafted).astype(np.int16)
    return columns | {"drafted": drafted, "accepted": accepted, "draft_token": draft_token}


def along_path(values: NDArray[Any], offsets: NDArray[np.int64], depths: int) -> NDArray[Any]:
    """``[P]`` values to ``[P, depths]``: row ``s`` holds those of ``s, s + 1, ...``, NaN past the prompt's end."""
    padded = np.concatenate([values, np.full(depths, np.nan, values.dtype)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, depths)[: len(values)]
    return np.where(_inside(offsets, depths), windows, np.asarray(np.nan, values.dtype))


def path_chances(trace: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The chance that all tokens before a depth are accepted, and that the one drafted there is, given that. Each is
    ``[P, G]`` from every position along the output, depth 1 first. A greedy trace has 0 or 1, NaN where nothing was
    drafted."""
    inside, depth = _inside(trace.offsets, trace.gamma_max), np.arange(trace.gamma_max)
    if trace.sampled is None:
        accepted = trace.accepted[:, None]
        drafted = inside & (depth < trace.drafted[:, None])
        reach, acceptance = (depth <= accepted).astype(np.float64), (depth < accepted).astype(np.float64)
    else:
        drafted = ~np.isnan(along_path(trace.sampled.confidence[:, 0], trace.offsets, trace.gamma_max))
        reach = reach_chances(trace)[:, :-1]
        acceptance = along_path(trace.sampled.acceptance.astype(np.float64), trace.offsets, trace.gamma_max)
    return np.where(drafted, reach, np.nan), np.where(drafted, acceptance, np.nan)


def reach_chances(trace: Trace) -> NDArray[np.float64]:
    """``[P, G + 1]`` chance, given the output, that the first 0, 1, .. G drafted ones are accepted; 0 past its end."""
    assert trace.sampled is not None
    survival = np.nan_to_num(along_path(trace.sampled.survival.astype(np.float64), trace.offsets, trace.gamma_max))
    return np.concatenate([np.ones((trace.positions, 1)), np.cumprod(survival, axis=1)], axis=1)


def _inside(offsets: NDArray[np.int64], depths: int) -> NDArray[np.bool_]:
    """``[P, depths]`` whether the row 0, 1, ... rows on belongs to the same prompt."""
    ends = np.repeat(offsets[1:], np.diff(offsets))
    return np.arange(offsets[-1])[:, None] + np.arange(depths) < ends[:, None]


def _next_true(marks: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """``[P]`` the first marked row at or after each row, at most the end of its prompt."""
    ends = np.append(np.flatnonzero(marks), len(marks))
    following = ends[np.searchsorted(ends, np.arange(len(marks)))]
    bounded: NDArray[np.int64] = np.minimum(following, np.repeat(offsets[1:], np.diff(offsets)))
    return bounded
