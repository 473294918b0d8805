"""SGLang's adaptive number of speculative steps: mean accepted tokens against thresholds with hysteresis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, Step
from draftgauge.policies.checks import check_lengths, check_share, check_tokens
from draftgauge.policies.registry import register_policy


class AdaptiveSteps(PolicyBase):
    """Moves along candidate lengths with the exponential moving average of the number of accepted tokens.

    SGLang, ``python/sglang/srt/speculative/adaptive_spec_params.py`` (``AdaptiveSpeculativeParams``; pull request
    21599), for one request: each step counts as a batch of one. The average begins at the first length minus 1. A
    decision first shortens the length while the average is at most the next shorter candidate - 0.5 + ``down``. Then it
    lengthens it while the average exceeds the present candidate - 0.5 + ``up``. What is learned stays from prompt to
    prompt, as in a server.
    """

    reads: ClassVar[Reads] = NO_SIGNALS

    def __init__(
        self, candidates: Sequence[int], start: int, smoothing: float, warm_up: int, every: int, down: float, up: float
    ) -> None:
        """Choose among ``candidates`` (increasing draft lengths), beginning at ``start``, which is one of them.

        Args:
            smoothing: weight of the newest step in the moving average, ``ema_alpha``.
            warm_up: steps before the first decision, ``warmup_batches``.
            every: steps between decisions, ``update_interval``.
            down: added to the threshold for fewer tokens, ``down_hysteresis``; negative to be slow to shorten.
            up: added to the threshold for more tokens, ``up_hysteresis``; positive to be slow to lengthen.
        """
        assert start in candidates, "the first length is a candidate"
        self.candidates = tuple(candidates)
        self.smoothing, self.warm_up, self.every, self.down, self.up = smoothing, warm_up, every, down, up
        self._index = self.candidates.index(start)
        self._average = float(start - 1)
        self._steps = 0

    def limit(self) -> int:
        return self.candidates[self._index]

    def observe(self, step: Step) -> None:
        """Average the accepted tokens and, every few steps, choose a length; a step without a draft does not count."""
        if step.drafted == 0:
            return
        self._average += self.smoothing * (step.accepted - self._average)
        self._steps += 1
        after_warm_up = self._steps - self.warm_up
        if after_warm_up > 0 and after_warm_up % self.every == 0:
            self._choose()

    def _choose(self) -> None:
        lengths = self.candidates
        while self._index > 0 and self._average <= lengths[self._index - 1] - 0.5 + self.down:
            self._index -= 1
        while self._index < len(lengths) - 1 and self._average > lengths[self._index] - 0.5 + self.up:
            self._index += 1


@register_policy(
    "sglang-adaptive",
    "moves between a few lengths after the mean accepted length (SGLang)",
    grid={"candidates": ((1, 3, 7), (1, 2, 4), (1, 2, 3, 4, 5, 6)), "start": (1, 3), "smoothing": (0.05, 0.2, 0.5)},
)
def sglang_adaptive(
    candidates: tuple[int, ...] = (1, 3, 7),
    start: int = 3,
    smoothing: float = 0.2,
    warm_up: int = 10,
    every: int = 5,
    down: float = -0.25,
    up: float = 0.0,
    *,
    gamma_max: int,
) -> Policy:
    name = "sglang-adaptive"
    check_share(name, "smoothing", smoothing)
    check_tokens(name, "warm_up", warm_up, least=0)
    check_tokens(name, "every", every)
    # As in SGLang, the first length joins the candidates.
    lengths = check_lengths(name, "candidates and start", (*candidates, start), gamma_max)
    return AdaptiveSteps(lengths, min(start, gamma_max), smoothing, warm_up, every, down, up)
