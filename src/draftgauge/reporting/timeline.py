"""How an output came about, token by token, in a replay at a fixed draft length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.reporting.views import Timeline, TimelineToken
from draftgauge.traces.trace import Trace

KINDS = {
    "accepted": "drafted and accepted",
    "corrected": "corrected: the target's own token after a rejected draft",
    "bonus": "bonus: the target's own token after a fully accepted draft",
    "plain": "plain: nothing was drafted",
}
TOKENS_SHOWN = 160


def replay_timeline(
    trace: Trace, prompt: int, gamma: int | Mapping[int, int], texts: Sequence[str], limit: int = TOKENS_SHOWN
) -> Timeline:
    """Walk one prompt of a trace in steps that draft ``gamma`` tokens.

    Args:
        trace: the dense trace.
        prompt: which of ``trace.prompts``.
        gamma: drafted tokens a step, 0 for plain decoding; of every step by the position it begins at, where they
            differ.
        texts: decoded piece of every row of the trace, ``[P]``.
        limit: output tokens after which the walk stops, at the end of a step.
    """
    info = trace.prompts[prompt]
    start, end = int(trace.offsets[prompt]), int(trace.offsets[prompt + 1])
    pieces = dict(zip(trace.token.tolist(), texts, strict=True))
    steps: list[tuple[TimelineToken, ...]] = []
    row = start
    while row < end and row - start < limit:
        wanted = gamma if isinstance(gamma, int) else gamma[row - start]
        drafted = min(wanted, int(trace.drafted[row]), trace.max_new_tokens - (row - start) - 1)
        steps.append(_step(trace, row, end, drafted, texts, pieces))
        row += len(steps[-1])
    return Timeline(info.task, info.identifier, gamma if isinstance(gamma, int) else None, tuple(steps))


def _step(
    trace: Trace, row: int, end: int, drafted: int, texts: Sequence[str], pieces: dict[int, str]
) -> tuple[TimelineToken, ...]:
    """The tokens one step commits: the accepted ones and the target's own, where the output does not end before."""
    accepted = min(drafted, int(trace.accepted[row]))
    confidence = [float(value) for value in trace.confidence[row, :drafted]]
    tokens = [TimelineToken(texts[row + i], "accepted", i + 1, confidence[i]) for i in range(accepted)]
    if row + accepted >= end:
        return tuple(tokens)
    text = texts[row + accepted]
    if drafted == 0:
        tokens.append(TimelineToken(text, "plain"))
    elif accepted == drafted:
        tokens.append(TimelineToken(text, "bonus"))
    else:
        rejected = pieces.get(int(trace.draft_token[row, accepted]))
        tokens.append(TimelineToken(text, "corrected", accepted + 1, confidence[accepted], rejected))
    return tuple(tokens)


def representative_prompts(trace: Trace, per_task: int) -> tuple[int, ...]:
    """Typical prompts of every task: those whose mean accepted length is nearest the task's median, in order."""
    accepted = np.array([rows.mean() for rows in np.split(trace.accepted, trace.offsets[1:-1])])
    tasks = np.array([info.task for info in trace.prompts])
    chosen: list[int] = []
    for task in dict.fromkeys(tasks.tolist()):
        of_task = np.flatnonzero(tasks == task)
        distance = np.abs(accepted[of_task] - np.median(accepted[of_task]))
        chosen += sorted(of_task[np.argsort(distance, kind="stable")[:per_task]].tolist())
    return tuple(chosen)


@dataclass(frozen=True)
class Span:
    """One token as the page prints it."""

    text: str
    kind: str
    title: str
    newline: bool


def spans(timeline: Timeline) -> tuple[tuple[Span, ...], ...]:
    """The printed steps of a timeline; their texts, joined, are the output text."""
    return tuple(tuple(_span(token) for token in step) for step in timeline.steps)


def _span(token: TimelineToken) -> Span:
    return Span(token.text, token.kind, _title(token), "\n" in token.text)


def _title(token: TimelineToken) -> str:
    """Mouse-over text."""
    sure = "" if token.confidence is None or math.isnan(token.confidence) else f", confidence {token.confidence:.2f}"
    if token.kind == "accepted" and token.depth is not None:
        return f"drafted token {token.depth} of its step, accepted{sure}"
    if token.kind == "corrected" and token.depth is not None:
        instead = f" {token.rejected!r}" if token.rejected is not None else ""
        return f"corrected: drafted token {token.depth}{instead} was rejected{sure}"
    return KINDS[token.kind]
