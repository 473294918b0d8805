"""What deciding takes on this machine, measured on made-up steps."""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.base import DecisionSeconds, Extends, Policy, ReadsText, Signal, Step, Trims
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.policies.suffix import ORDER
from draftgauge.statistics.typical import typical

TIMED_STEPS = 120
TIMED_LENGTH = 4
"""Tokens of a timed step, drafted and committed."""
TOKENS = 64
READ_TOKENS, READINGS = 200, 25
LOOK_UPS = 25

Floats = NDArray[np.float32]


class MadeUpPass:
    """A decoder's pass over one token in NumPy.

    Live, a pass of a model comes before most decisions and pushes the policy, and the interpreter that runs it, out of
    the processor's caches. Going over memory instead leaves the code where it is, and finds half of what a decision
    then takes.
    """

    def __init__(self, width: int, layers: int, vocabulary: int = 4096, context: int = 128) -> None:
        rng = np.random.default_rng(0)
        shapes = ((2 * width, width), (width, width), (6 * width, width), (width, 3 * width))
        self._layers = [[rng.standard_normal(shape, np.float32) for shape in shapes] for _ in range(layers)]
        self._head = rng.standard_normal((vocabulary, width), np.float32)
        self._keys = rng.standard_normal((context, width), np.float32)

    def __call__(self) -> tuple[int, float]:
        """A token and its confidence."""
        x = self._keys[0]
        for to_heads, to_output, to_gate, to_down in self._layers:
            query, key = np.split(to_heads @ _normed(x), 2)
            shares = _softmax(self._keys @ (query + np.roll(key, len(key) // 2)))
            x = x + to_output @ (shares @ self._keys)
            gate, up = np.split(to_gate @ _normed(x), 2)
            x = x + to_down @ (up / (1 + np.exp(-np.clip(gate, -10, 10))))
        chances = _softmax(self._head @ _normed(x))
        token = int(chances.argmax())
        return token, float(chances[token])


def _normed(x: Floats) -> Floats:
    normed: Floats = x / np.sqrt(np.mean(np.square(x)))
    return normed


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    shares: Floats = weights / weights.sum()
    return shares


def draft_and_target() -> tuple[MadeUpPass, MadeUpPass]:
    """Passes over 5 and 35 MB of weights; the bundled pair has 3 and 29."""
    return MadeUpPass(128, 4), MadeUpPass(384, 4)


def look_up_seconds(stored: StoredTexts) -> float:
    """The median of what looking up an ending of stored texts in them takes; 0 where they hold none."""
    text = np.concatenate([np.zeros(0, np.int64), *stored.texts])
    if len(text) < ORDER:
        return 0.0
    (draft, _), rng, taken = draft_and_target(), np.random.default_rng(0), []
    for start in rng.integers(0, len(text) - ORDER + 1, LOOK_UPS).tolist():
        ending = text[start : start + ORDER].tolist()
        draft()
        begun = time.perf_counter()
        stored.index.entry(*ending)
        taken.append(time.perf_counter() - begun)
    return float(np.median(taken))


def decision_times(policy: Policy, longest: int = TIMED_LENGTH) -> DecisionSeconds:
    """What a policy takes for a drafted token, a step without its tokens, a prompt's token and a committed one; 0 for a
    prompt's token where it does not read the prompt.

    Each is the :func:`~draftgauge.statistics.typical.typical` one of many. Steps draft and commit random tokens of a
    small vocabulary, so that the text foretells something everywhere. Passes of models come between decisions as in the
    live loop. What a committed token takes is found beside them, from observing many at once.

    Args:
        policy: started anew.
        longest: tokens that it may draft; steps of ``TIMED_LENGTH`` or of as many as that are timed.
    """
    length = min(TIMED_LENGTH, longest)
    rng = np.random.default_rng(0)
    draft, target = draft_and_target()
    of_token, of_step, reading, committed = [], [], [], []
    trims = policy if isinstance(policy, Trims) else None
    extends = policy if isinstance(policy, Extends) else None
    policy.reset()
    for _ in range(TIMED_STEPS):
        drafted, sure = rng.integers(0, TOKENS, length).tolist(), rng.random(length).tolist()
        signals = [Signal(depth + 1, sure[depth], math.nan, math.nan, drafted[depth]) for depth in range(length)]
        step = Step(length, length - 1, length, signals, tokens=drafted)
        begun = time.perf_counter()
        policy.limit()
        step_seconds = time.perf_counter() - begun
        for signal in signals:
            draft()
            begun = time.perf_counter()
            policy.keep_drafting(signal)
            of_token.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        if trims is not None:
            trims.trims()
        if extends is not None:
            extends.extend(length)
        step_seconds += time.perf_counter() - begun
        target()
        begun = time.perf_counter()
        policy.observe(step)
        of_step.append(step_seconds + time.perf_counter() - begun)
    for _ in range(READINGS):
        prompt = rng.integers(0, 8 * TOKENS, READ_TOKENS).tolist()
        policy.reset()
        target()
        if isinstance(policy, ReadsText):
            begun = time.perf_counter()
            policy.read(prompt)
            reading.append((time.perf_counter() - begun) / len(prompt))
        policy.limit()
        begun = time.perf_counter()
        policy.observe(Step(0, READ_TOKENS, READ_TOKENS, tokens=prompt, appended=READ_TOKENS))
        committed.append((time.perf_counter() - begun) / len(prompt))
    by_token = typical(committed)
    return DecisionSeconds(
        token=typical(of_token),
        step=max(0.0, typical(of_step) - length * by_token),
        reading=typical(reading) if reading else 0.0,
        committed=by_token,
    )
