"""How an output came about, token by token, in a replay at a fixed draft length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftgauge.traces.trace import Trace

KINDS = {
    "accepted": "drafted and accepted",
    "corrected": "corrected: the target's own token after a rejected draft",
    "bonus": "bonus: the target's own token after a fully accepted draft",
    "plain": "plain: nothing was drafted",
}
TOKENS_SHOWN = 160


@dataclass(frozen=True)
class Token:
    """One token of an output: its text, which of :data:`KINDS` it is, and a text to show on hover."""

    text: str
    kind: str
    title: str


@dataclass(frozen=True)
class Timeline:
    """One output in steps that draft ``gamma`` tokens; the texts of all tokens, joined, are the output."""

    task: str
    identifier: str
    gamma: int
    steps: tuple[tuple[Token, ...], ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.steps))


def replay_timeline(trace: Trace, prompt: int, gamma: int, texts: Sequence[str]) -> Timeline:
    """Walk through one prompt of a trace; a long output ends with a whole step."""
    info = trace.prompts[prompt]
    start, end = int(trace.offsets[prompt]), int(trace.offsets[prompt + 1])
    pieces = dict(zip(trace.token.tolist(), texts, strict=True))
    steps, row = [], start
    while row < end and row - start < TOKENS_SHOWN:
        drafted = min(gamma, int(trace.drafted[row]), trace.max_new_tokens - (row - start) - 1)
        accepted = min(drafted, int(trace.accepted[row]))
        sure = [f", confidence {c:.2f}" if math.isfinite(c) else "" for c in trace.confidence[row, :drafted].tolist()]
        step = [
            Token(texts[row + depth], "accepted", f"drafted token {depth + 1} of its step, accepted{sure[depth]}")
            for depth in range(accepted)
        ]
        if row + accepted < end:  # else the output ends with a drafted token
            if accepted < drafted:
                kind, wrong = "corrected", pieces.get(int(trace.draft_token[row, accepted]))
                shown = "" if wrong is None else f" {wrong!r}"
                title = f"corrected: drafted token {accepted + 1}{shown} was rejected{sure[accepted]}"
            else:
                kind = "bonus" if drafted else "plain"
                title = KINDS[kind]
            step.append(Token(texts[row + accepted], kind, title))
        steps.append(tuple(step))
        row += len(step)
    return Timeline(info.task, info.identifier, gamma, tuple(steps))


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
