"""SGLang's throughput-aware policy: windowed acceptance at each depth, over a table of what each length costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, Step, StepCosts, seconds_by_length
from draftgauge.policies.checks import check_lengths, check_share, check_tokens
from draftgauge.policies.registry import register_policy


class ThroughputAware(PolicyBase):
    """Chooses the candidate length with the most expected tokens per second, from the last steps' acceptance.

    SGLang, ``ThroughputAwarePolicy`` (``--speculative-adaptive-strategy throughput_aware``, pull request 28045), for
    one request. At each depth the share of the last ``window`` steps that drafted so far and got the token accepted is
    the chance to reach it; depths never drafted continue the others geometrically. Every ``every`` steps, once the
    present length's depths have a full window, each candidate is scored ``(1 + sum of chances) / seconds``; the best
    one is taken if it beats the present one by the share ``hysteresis``. A shorter length forgets what lay beyond it.
    What is learned stays from prompt to prompt, as in a server. The cost curve takes the place of the table that SGLang
    measures at its start.
    """

    reads: ClassVar[Reads] = NO_SIGNALS

    def __init__(
        self,
        candidates: Sequence[int],
        start: int,
        seconds: Sequence[float],
        window: int = 20,
        every: int = 5,
        hysteresis: float = 0.1,
    ) -> None:
        """Choose among ``candidates`` (increasing draft lengths), beginning at ``start``.

        Args:
            candidates: at least 1 each.
            start: one of them.
            seconds: of a step that drafts 0, 1, ... tokens, up to the longest candidate.
            window: steps remembered at each depth.
            every: steps between decisions.
            hysteresis: by what share another length must be better to be taken.
        """
        assert start in candidates, "the first length is a candidate"
        self.candidates = tuple(candidates)
        self.seconds = tuple(seconds)
        self.every = every
        self.hysteresis = hysteresis
        self._length = start
        self._steps = 0
        self._windows: tuple[deque[int], ...] = tuple(deque(maxlen=window) for _ in range(self.candidates[-1]))

    def limit(self) -> int:
        return self._length

    def observe(self, step: Step) -> None:
        """Record the step and, every few steps, choose a length; a step without a draft does not count."""
        if step.drafted == 0:
            return
        for depth in range(step.drafted):
            self._windows[depth].append(1 if depth < step.accepted else 0)
        self._steps += 1
        if self._steps == self.every:
            self._steps = 0
            if all(len(window) == window.maxlen for window in self._windows[: self._length]):
                self._choose()

    def _choose(self) -> None:
        chances = self._chances()
        scores = {
            length: (1 + sum(chances[:length])) / self.seconds[length]
            for length in self.candidates
            if length <= len(chances)
        }
        best = max(scores, key=lambda length: scores[length])  # the shortest of equals
        if scores[best] > scores[self._length] * (1 + self.hysteresis):
            if best < self._length:
                for window in self._windows[best:]:
                    window.clear()
            self._length = best

    def _chances(self) -> list[float]:
        """Chance that the token at each depth is accepted; ends at the depth from which nothing can be extrapolated."""
        chances: list[float] = []
        for window in self._windows:
            if window:
                chances.append(sum(window) / len(window))
            elif len(chances) == 1:
                chances.append(chances[0])
            elif chances[0] > 0:
                chances.append(chances[-1] * (chances[-1] / chances[0]) ** (1 / (len(chances) - 1)))
            else:
                break
        return chances


@register_policy(
    "sglang-throughput",
    "the length with the best expected throughput over a window (SGLang)",
    grid={
        "candidates": ((1, 3, 5, 7), (1, 2, 4), (1, 2, 3, 4, 5, 6)),
        "start": (1, 3),
        "hysteresis": (0.0, 0.1),
    },
)
def sglang_throughput(
    candidates: tuple[int, ...] = (1, 3, 5, 7),
    start: int = 3,
    window: int = 20,
    every: int = 5,
    hysteresis: float = 0.1,
    *,
    gamma_max: int,
    costs: StepCosts,
) -> Policy:
    name = "sglang-throughput"
    check_tokens(name, "window", window)
    check_tokens(name, "every", every)
    check_share(name, "hysteresis", hysteresis)
    lengths = check_lengths(name, "candidates and start", (*candidates, start), gamma_max)
    seconds = seconds_by_length(costs, lengths[-1], NO_SIGNALS).tolist()
    return ThroughputAware(lengths, min(start, gamma_max), seconds, window, every, hysteresis)
