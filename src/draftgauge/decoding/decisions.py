"""What deciding takes in the live loop: policies that decode with the pair while a clock runs around what they are
asked.

Made-up steps find less: in the loop a pass of a model comes before each question, and of the loop's own code, and what
the policy needs is no longer in the processor's caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Generator

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.decoding.speculative import speculative_decode
from draftgauge.drafters.base import Drafter
from draftgauge.models.base import CachedModel
from draftgauge.policies.base import Extends, Policy, ReadsText, Signal, Step, Trims, reads_of
from draftgauge.statistics.typical import typical
from draftgauge.traces.costs import PolicySeconds

STEPS = 160
"""Timed steps of each policy, where time allows."""


class TimedPolicy:
    """A policy, and the seconds that it takes for each drafted token, each step besides, and each token of a prompt."""

    def __init__(self, policy: Policy) -> None:
        """Ask a policy under a clock."""
        self.reads = reads_of(policy)
        self.of_token: list[float] = []
        self.of_step: list[float] = []
        self.of_reading: list[float] = []
        self._policy = policy
        self._step = 0.0
        if isinstance(policy, ReadsText):
            self.read = self._read(policy)
        if isinstance(policy, Trims):
            self.trims = self._trims(policy)
        if isinstance(policy, Extends):
            self.extend = self._extend(policy)

    def reset(self) -> None:
        self._policy.reset()

    def limit(self) -> int:
        begun = time.perf_counter()
        limit = self._policy.limit()
        self._step = time.perf_counter() - begun
        return limit

    def keep_drafting(self, signal: Signal) -> bool:
        begun = time.perf_counter()
        keeps = self._policy.keep_drafting(signal)
        self.of_token.append(time.perf_counter() - begun)
        return keeps

    def observe(self, step: Step) -> None:
        begun = time.perf_counter()
        self._policy.observe(step)
        self.of_step.append(self._step + time.perf_counter() - begun)

    def seconds(self, name: str) -> PolicySeconds:
        """What is typical, for a policy of that name; 0 of what it was never asked."""
        token, step, reading = (
            typical(taken) if taken else 0.0 for taken in (self.of_token, self.of_step, self.of_reading)
        )
        return PolicySeconds(name, token, step, reading)

    def _read(self, policy: ReadsText) -> Callable[[Sequence[int]], None]:
        def read(prompt_tokens: Sequence[int]) -> None:
            begun = time.perf_counter()
            policy.read(prompt_tokens)
            self.of_reading.append((time.perf_counter() - begun) / len(prompt_tokens))

        return read

    def _trims(self, policy: Trims) -> Callable[[], bool]:
        def trims() -> bool:
            begun = time.perf_counter()
            leaves_out = policy.trims()
            self._step += time.perf_counter() - begun
            return leaves_out

        return trims

    def _extend(self, policy: Extends) -> Callable[[int], Sequence[int]]:
        def extend(room: int) -> Sequence[int]:
            begun = time.perf_counter()
            tokens = policy.extend(room)
            self._step += time.perf_counter() - begun
            return tokens

        return extend


def time_decisions(
    target: CachedModel,
    drafter: Drafter,
    policies: Mapping[str, Policy],
    prompts: Iterator[list[int]],
    settings: DecodingSettings,
    seconds: float,
    generator: Generator | None = None,
) -> tuple[PolicySeconds, ...]:
    """Decode with every policy by turns, until all have enough steps or the time is over; each decodes at least once.

    Args:
        target, drafter: as of :func:`~draftgauge.decoding.speculative.speculative_decode`.
        policies: by name.
        prompts: to decode, as many as are asked for.
        settings: of decoding.
        seconds: that it may take.
        generator: on the target's device, needed to sample.
    """
    timed = {name: TimedPolicy(policy) for name, policy in policies.items()}
    until = time.perf_counter() + seconds
    while any(len(policy.of_step) < STEPS for policy in timed.values()):
        prompt = next(prompts)
        for policy in timed.values():
            speculative_decode(target, drafter, policy, prompt, settings, generator)
        if time.perf_counter() > until:
            break
    return tuple(policy.seconds(name) for name, policy in timed.items())
