"""What deciding takes on this machine, measured on made-up steps."""

from __future__ import annotations

import math
import time

import numpy as np

from draftgauge.policies.base import DecisionSeconds, Extends, Policy, ReadsText, Signal, Step
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.policies.suffix import ORDER

TIMED_DECISIONS = 1_200
TIMED_LENGTH = 4
"""Tokens of every timed step, drafted and committed."""
TOKENS = 64
READ_TOKENS, READINGS = 200, 50
LOOK_UPS = 25
SWEPT_BYTES = 1 << 23
"""Memory that is gone over before everything timed: live, a pass of a model comes before each decision and pushes the
policy out of the processor's caches.
"""


def look_up_seconds(stored: StoredTexts) -> float:
    """The median of what looking up an ending of stored texts in them takes; 0 where they hold none."""
    text = np.concatenate([np.zeros(0, np.int64), *stored.texts])
    if len(text) < ORDER:
        return 0.0
    rng, swept, taken = np.random.default_rng(0), np.zeros(SWEPT_BYTES // 8), []
    for start in rng.integers(0, len(text) - ORDER + 1, LOOK_UPS).tolist():
        ending = text[start : start + ORDER].tolist()
        swept += 1
        begun = time.perf_counter()
        stored.index.entry(*ending)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def decision_times(policy: Policy) -> DecisionSeconds:
    """Medians of what a policy takes for a drafted token, a step without its tokens, a prompt's token and a committed
    one; 0 for a prompt's token where it does not read the prompt.

    Steps draft and commit random tokens of a small vocabulary, so that the text foretells something everywhere. What a
    committed token takes is found beside them, from observing many at once.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, TOKENS, (TIMED_DECISIONS // TIMED_LENGTH, TIMED_LENGTH)).tolist()
    confidence = rng.random((len(tokens), TIMED_LENGTH)).tolist()
    swept = np.zeros(SWEPT_BYTES // 8)
    of_token, of_step, reading, committed = [], [], [], []
    extends = policy if isinstance(policy, Extends) else None
    policy.reset()
    for drafted, sure in zip(tokens, confidence, strict=True):
        signals = [Signal(depth + 1, sure[depth], math.nan, math.nan, drafted[depth]) for depth in range(TIMED_LENGTH)]
        step = Step(TIMED_LENGTH, TIMED_LENGTH - 1, TIMED_LENGTH, signals, tokens=drafted)
        swept += 1
        begun = time.perf_counter()
        policy.limit()
        step_seconds = time.perf_counter() - begun
        for signal in signals:
            swept += 1
            begun = time.perf_counter()
            policy.keep_drafting(signal)
            of_token.append(time.perf_counter() - begun)
        swept += 1
        begun = time.perf_counter()
        if extends is not None:
            extends.extend(TIMED_LENGTH)
        extended = time.perf_counter()
        swept += 1
        observed = time.perf_counter()
        policy.observe(step)
        of_step.append(step_seconds + extended - begun + time.perf_counter() - observed)
    prompt = rng.integers(0, 8 * TOKENS, READ_TOKENS).tolist()
    for _ in range(READINGS):
        policy.reset()
        swept += 1
        if isinstance(policy, ReadsText):
            begun = time.perf_counter()
            policy.read(prompt)
            reading.append((time.perf_counter() - begun) / len(prompt))
        policy.limit()
        begun = time.perf_counter()
        policy.observe(Step(0, READ_TOKENS, READ_TOKENS, tokens=prompt, appended=READ_TOKENS))
        committed.append((time.perf_counter() - begun) / len(prompt))
    by_token = float(np.median(committed))
    return DecisionSeconds(
        token=float(np.median(of_token)),
        step=max(0.0, float(np.median(of_step)) - TIMED_LENGTH * by_token),
        reading=float(np.median(reading)) if reading else 0.0,
        committed=by_token,
    )
