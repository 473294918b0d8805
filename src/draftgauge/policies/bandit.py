"""A bandit over draft lengths: which one gives the most tokens per second is learned by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from draftgauge.core.seeds import generator
from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, Step, StepCosts, seconds_by_length
from draftgauge.policies.checks import check_lengths, check_share, check_tokens
from draftgauge.policies.registry import register_policy


class EpsilonGreedy(PolicyBase):
    """Drafts the length with the most tokens per second so far, and now and then, with chance ``epsilon``, any one of
    them.

    The epsilon-greedy bandit (Sutton and Barto, "Reinforcement Learning", section 2.4) over draft lengths, a common
    baseline of adaptive speculation (compare Hou et al. 2025, "BanditSpec", arXiv 2505.15141). The value of an arm is
    its tokens over its seconds, not a mean of ratios, as throughput is what counts. Seconds are those of a cost curve,
    not of a clock, so that replay and live choose alike. Every arm is tried once, in order; what is learned stays from
    prompt to prompt.
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

    def limit(self) -> int:
        self._arm = self._choose()
        return self.arms[self._arm]

    def observe(self, step: Step) -> None:
        """Credit the arm with the step's tokens and seconds, even where the step drafted fewer tokens than wanted."""
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


@register_policy(
    "bandit",
    "the length with the most tokens a second so far, and now and then another (epsilon-greedy)",
    grid={"arms": ((0, 1, 2, 3, 4, 6, 8), (0, 1, 2, 3, 4), (1, 2, 3, 4), (2, 4, 8)), "epsilon": (0.01, 0.03, 0.1)},
)
def bandit(
    arms: tuple[int, ...] = (0, 1, 2, 3, 4, 6, 8),
    epsilon: float = 0.1,
    seed: int = 0,
    *,
    gamma_max: int,
    costs: StepCosts,
) -> Policy:
    """Draft the length with the most tokens per second so far, and now and then any."""
    check_share("bandit", "epsilon", epsilon)
    check_tokens("bandit", "seed", seed, least=0)
    lengths = check_lengths("bandit", "arms", arms, gamma_max, least=0)
    return EpsilonGreedy(lengths, seconds_by_length(costs, lengths[-1], NO_SIGNALS).tolist(), epsilon, seed)
