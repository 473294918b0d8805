"""The ways of decoding that a live bench compares, run against each other prompt by prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from draftgauge.api.pair import Pair
from draftgauge.api.prompts import log
from draftgauge.api.requests import PLAIN
from draftgauge.core.errors import warn
from draftgauge.core.prompts import in_turn
from draftgauge.decoding.plain import plain_decode
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Drafter
from draftgauge.policies.base import Policy

ROUNDS, ENOUGH = 3, 180.0  # where none are asked for: at most, and the seconds after which no further one begins


@dataclass(frozen=True)
class BenchPrompt:
    """A prompt ready to decode; ``conversation`` is the one that it is a turn of, one of its own if None."""

    tokens: list[int]
    task: str
    conversation: int | None = None


@dataclass(frozen=True)
class ArmRun:
    """One prompt decoded once: committed tokens, target passes (0 if unknown), decoding seconds of ``timed`` tokens,
    and how many tokens were accepted of those drafted and of those looked up in the text.
    """

    tokens: list[int]
    steps: int
    timed: int
    seconds: float
    prefill_seconds: float
    accepted_draft: int = 0
    accepted_text: int = 0


@dataclass
class Arm:
    """One way of decoding, with all its runs by prompt and round.

    An ``outside`` arm is another library's: if it fails, its error is kept in ``failed`` and the others continue.
    ``restart`` makes it forget what it has learned of earlier prompts.
    """

    name: str
    decode: Callable[[list[int]], ArmRun]
    runs: list[list[ArmRun]] = field(default_factory=list)
    outside: bool = False
    failed: str = ""
    restart: Callable[[], None] = lambda: None

    def run(self, prompt: list[int]) -> list[ArmRun]:
        """One run; empty if an outside arm fails or has failed before."""
        if self.failed:
            return []
        try:
            return [self.decode(prompt)]
        except Exception as error:
            if not self.outside:
                raise
            self.failed = f"{type(error).__name__}: {error}"
            return []


def own_arm(
    pair: Pair,
    settings: DecodingSettings,
    name: str = PLAIN,
    policy: Policy | None = None,
    drafter: Drafter | None = None,
) -> Arm:
    """Decode with the pair's engine under a policy, or plainly: the baseline of every comparison. Arms may share a
    drafter, which on a GPU then records its passes once.
    """
    drafter, learning = drafter or (None if policy is None else pair.drafter()), deepcopy(policy)

    def restart() -> None:
        nonlocal learning
        learning = deepcopy(policy)

    def decode(prompt: list[int]) -> ArmRun:
        if learning is None or drafter is None:
            g = plain_decode(pair.target, prompt, settings)
        else:
            g = speculative_decode(pair.target, drafter, learning, prompt, settings)
        text = sum(step.accepted_text for step in g.steps)
        draft = sum(step.accepted for step in g.steps) - text
        return ArmRun(g.tokens, len(g.steps), len(g.tokens), g.decode_seconds, g.prefill_seconds, draft, text)

    return Arm(name, decode, restart=restart)


def bench_arms(
    arms: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    rounds: int | None,
    rng: np.random.Generator,
    progress: Callable[[int, int], None],
    seconds: float | None = None,
) -> list[BenchPrompt]:
    """Decode every prompt with every arm, ``rounds`` times, if None thrice or until a round ends after three minutes;
    fills the arms' runs, and returns the prompts that they are of, in their order: all, unless ``seconds`` were over
    in the first round.

    The order of the arms is drawn anew for every prompt and round: caches that one leaves warm would else always help
    the same next one. All arms decode the first prompt once beforehand, which is not counted, and from which the
    time is estimated; each round begins as if they had decoded nothing. With ``seconds`` prompts of all tasks take
    turns, and none but the first is begun after that time.
    """
    begun, prompts = time.monotonic(), list(prompts if seconds is None else in_turn(prompts))
    visits = [(number, prompt) for _ in range(rounds or ROUNDS) for number, prompt in enumerate(prompts)]
    for index in rng.permutation(len(arms)):
        progress(0, len(visits))
        arms[index].run(prompts[0].tokens)
    for arm in arms:
        arm.runs = [[] for _ in prompts]
    once = (time.monotonic() - begun) * len(prompts)
    log.info("%d ways of decoding, %d prompts: about %.0f s a round", len(arms), len(prompts), once)
    for done, (number, prompt) in enumerate(visits):
        limit = seconds if seconds is not None else ENOUGH if rounds is None and number == 0 else None
        if done and limit is not None and time.monotonic() > begun + limit:
            whole = done // len(prompts)  # the last round is dropped where it was not finished
            if not whole:
                return prompts[:done]
            for arm in arms:
                arm.runs = [runs[:whole] for runs in arm.runs]
            break
        for index in rng.permutation(len(arms)):
            if number == 0:
                arms[index].restart()
            arms[index].runs[number] += arms[index].run(prompt.tokens)
        progress(done + 1, len(visits))
    return prompts


def without_failed(arms: Sequence[Arm]) -> list[Arm]:
    for arm in arms:
        if arm.failed:
            warn(f"{arm.name} fails on this pair and is left out ({arm.failed})")
    return [arm for arm in arms if not arm.failed]
