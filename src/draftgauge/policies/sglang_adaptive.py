"""SGLang's adaptive number of speculative steps: mean accepted tokens against thresholds with hysteresis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, Signal, Step, check_lengths, check_share, check_tokens
from draftgauge.policies.spec import register_policy


@dataclass(frozen=True)
class TierRule:
    """How a tier moves, by SGLang's names: ``ema_alpha``, ``warmup_batches``, ``update_interval``, ``down_hysteresis``
    (negative to be slow to shorten), ``up_hysteresis`` (positive to be slow to lengthen), ``ceiling_coeff``."""

    smoothing: float = 0.2
    warm_up: int = 10
    every: int = 5
    down: float = -0.25
    up: float = 0.0
    ceiling: float = 0.0


class StepTier:
    """Moves along candidate lengths with the exponential moving average of the number of accepted tokens.

    SGLang 0.5.23, ``AdaptiveStepSlot`` in ``sglang/srt/speculative/adaptive_spec_params.py``. The average begins at the
    first length minus 1. A decision shortens while the average is at most half below the next shorter candidate, plus
    ``down`` (half above 0). Else it lengthens while the average is more than half below the present one, plus ``up``.
    Length 0 drafts nothing, keeps the average, and tries the next candidate at the next decision.
    """

    def __init__(self, candidates: Sequence[int], start: int, rule: TierRule) -> None:
        """Choose among ``candidates``, beginning at ``start``, or at the middle one where it is none of them."""
        self.candidates, self.rule = tuple(sorted(set(candidates))), rule
        middle = len(self.candidates) // 2
        self._index = self.candidates.index(start) if start in self.candidates else middle
        self._average = float(self.length - 1)
        self._batches = 0

    @property
    def length(self) -> int:
        return self.candidates[self._index]

    def update(self, accepted: Sequence[int]) -> None:
        """A step of a batch: the accepted tokens of each request."""
        rule = self.rule
        if self.length > 0:
            mean = sum(accepted) / len(accepted)
            self._average = (1 - rule.smoothing) * self._average + rule.smoothing * mean
        self._batches += 1
        after_warm_up = self._batches - rule.warm_up
        if after_warm_up > 0 and after_warm_up % rule.every == 0:
            self._choose()

    def _choose(self) -> None:
        lengths, before, last = self.candidates, self._index, len(self.candidates) - 1
        if self.length == 0:
            self._index = min(before + 1, last)
            if self.length > 0 and self._average < 0:  # it began at 0, and has seen no draft
                self._average = float(self.length - 1)
            return
        while self._index > 0:
            shorter = lengths[self._index - 1]
            if self._average > (0.5 if shorter == 0 else shorter - 0.5) + self.rule.down:
                break
            self._index -= 1
        if self._index == before:
            while self._index < last and self._average > self.length - 0.5 + self.rule.up:
                self._index += 1
        if self.rule.ceiling > 0:  # shortens only
            ceiling = max(1, math.ceil(self._average * self.rule.ceiling))
            if self._index <= before:
                while self._index > 0 and self.length > ceiling:
                    self._index -= 1


class AdaptiveSteps(PolicyBase):
    """A tier for one request: each step counts as a batch of one. What is learned stays from prompt to prompt, as in a
    server."""

    reads: ClassVar[Reads] = NO_SIGNALS

    def __init__(self, candidates: Sequence[int], start: int, rule: TierRule) -> None:
        """Choose among ``candidates`` (draft lengths), beginning at ``start``, which is one of them."""
        assert start in candidates, "the first length is a candidate"
        self._tier = StepTier(candidates, start, rule)

    def limit(self) -> int:
        return self._tier.length

    def observe(self, step: Step) -> None:
        """A step that drafted nothing, where it was to draft, does not count."""
        if step.drafted or self._tier.length == 0:
            self._tier.update([step.accepted])


TIERS = {  # SGLang's own, by the least requests of a batch: candidates, and what differs from the rule above
    1: ((1, 3, 5, 7), TierRule()),
    8: ((0, 1, 3), TierRule(down=0.0)),
    32: ((0, 1), TierRule(down=0.0)),
    64: ((0,), TierRule(down=0.0)),
}


class BatchTiers:
    """Tiers by the number of requests in a batch: SGLang 0.5.23, ``AdaptiveSpeculativeParams``, without padding to the
    sizes of captured graphs. One for a whole batch (:mod:`draftgauge.policies.batch`)."""

    reads: Reads = NO_SIGNALS

    def __init__(self, gamma_max: int, start: int = 3, tiers: Mapping[int, tuple[Sequence[int], TierRule]] = TIERS):
        """Candidates beyond ``gamma_max`` count as that; ``start``: the server's own number of steps."""
        self._tiers = {
            least: StepTier([min(length, gamma_max) for length in candidates], min(start, gamma_max), rule)
            for least, (candidates, rule) in sorted(tiers.items())
        }
        self._tier, self._requests = next(iter(self._tiers.values())), 0
        self._accepted: list[int] = []

    def tier(self, requests: int) -> StepTier:
        """The tier of the largest size that is not above a batch, or the first."""
        below = [least for least in self._tiers if least <= requests]
        return self._tiers[max(below, default=min(self._tiers))]

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        pass

    def first(self, caps: Mapping[int, int]) -> list[int]:
        self._tier, self._requests = self.tier(len(caps)), len(caps)
        return [slot for slot, cap in caps.items() if cap > 0 and self._tier.length > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if signal.depth < self._tier.length]

    def observe(self, slot: int, step: Step) -> None:
        self._accepted.append(step.accepted)
        if len(self._accepted) == self._requests:
            self._tier.update(self._accepted)
            self._accepted = []


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
    lengths = check_lengths(name, "candidates and start", (*candidates, start), gamma_max, least=0)
    return AdaptiveSteps(lengths, min(start, gamma_max), TierRule(smoothing, warm_up, every, down, up))
