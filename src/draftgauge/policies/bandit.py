"""A bandit over draft lengths: which one gives the most tokens per second is learned by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from draftgauge.core.seeds import generator
from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Signal, Step


class EpsilonGreedy:
    """Drafts the length with the most tokens per second so far, and now and then, with chance ``epsilon``, any one of them.

    The epsilon-greedy bandit (Sutton and Barto, "Reinforcement Learning", section 2.4) over draft lengths, a common baseline of
    adaptive speculation (compare Hou et al. 2025, "BanditSpec", arXiv 2505.15141). The value of an arm is its tokens over its
    seconds, not a mean of ratios, as throughput is what counts. Seconds are those of a cost curve, not of a clock, so that
    replay and live choose alike. Every arm is tried once, in order; what is learned stays from prompt to prompt.
    """

    reads: ClassVar[Reads] = NO_SIGNALS

    def __init__(self, arms: Sequence[int], seconds: Sequence[float], epsilon: float = 0.1, seed: int = 0) -> None:
        """Choose among ``arms``.

        Args:
            arms: draft lengths, 0 or more.
            seconds: of a step that drafts 0, 1, ... tokens, up to the longest arm.
            epsilon: chance of a step that explores, in 0..1.
            seed: of its own random generator.
        """
        self.arms = tuple(arms)
        self.seconds = tuple(seconds)
        self.epsilon = epsilon
        self._generator = generator(seed, "bandit")
        self._tokens = [0] * len(self.arms)
        self._spent = [0.0] * len(self.arms)
        self._arm = 0

    def reset(self) -> None:
        """Nothing to forget."""

    def limit(self) -> int:
        """The length of the arm that is pulled now."""
        self._arm = self._choose()
        return self.arms[self._arm]

    def keep_drafting(self, signal: Signal) -> bool:
        """Always: the length is set before the step."""
        return True

    def observe(self, step: Step) -> None:
        """Credit the arm with the step's tokens and seconds, also where the end of the output or the drafter made it shorter."""
        self._tokens[self._arm] += step.committed
        self._spent[self._arm] += self.seconds[step.drafted]

    def _choose(self) -> int:
        for arm, spent in enumerate(self._spent):
            if spent == 0.0:
                return arm
        if self._generator.random() < self.epsilon:
            return int(self._generator.integers(len(self.arms)))
        rates = [tokens / spent for tokens, spent in zip(self._tokens, self._spent, strict=True)]
        return rates.index(max(rates))
