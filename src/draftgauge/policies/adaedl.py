"""An entropy-based bound of the acceptance probability against a threshold that adapts: AdaEDL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, Signal, Step, nats
from draftgauge.policies.checks import check_positive, check_share
from draftgauge.policies.registry import register_policy


@dataclass(frozen=True)
class AdaEDLSettings:
    """The constants of AdaEDL, by default those of its section 3.1.

    Attributes:
        threshold: lambda at the beginning of a prompt. The paper sweeps 0.3 to 0.9 and fixes none; the default is the
            middle.
        factor: of the entropy, "gamma" in the paper.
        target: acceptance rate below which the threshold rises, "alpha".
        step: by how much it would move at once, "epsilon".
        rate_memory: weight of the past in the acceptance rate, "beta 1".
        threshold_memory: weight of the past in the threshold, "beta 2".
    """

    threshold: float = 0.6
    factor: float = 0.2
    target: float = 0.9
    step: float = 0.01
    rate_memory: float = 0.5
    threshold_memory: float = 0.9


class AdaEDL:
    """Stops after the first drafted token whose bound ``1 - sqrt(factor * H)`` is below lambda, which follows the
    acceptance rate.

    Agrawal et al. 2024, "AdaEDL: Early Draft Stopping via an Entropy-based Lower Bound on Token Acceptance Probability"
    (arXiv 2410.18351, section 3 and algorithm 1). After each step the acceptance rate is averaged exponentially, from 0
    on; lambda rises where it is below the target, and falls where it is not, unless everything that could be drafted
    was accepted. The paper's bound is that of the token *about to be* drafted; here, as everywhere in this package,
    drafter and signal come in one pass, and the token in doubt is verified too. ``H`` is in nats there; signals are in
    bits, and converted.
    """

    reads: ClassVar[Reads] = frozenset({SignalName.ENTROPY})

    def __init__(self, gamma: int, settings: AdaEDLSettings = AdaEDLSettings()) -> None:
        """Draft at most ``gamma`` tokens."""
        self.gamma = gamma
        self.settings = settings
        self.reset()

    def reset(self) -> None:
        self.threshold = self.settings.threshold
        self._rate = 0.0

    def limit(self) -> int:
        return self.gamma

    def keep_drafting(self, signal: Signal) -> bool:
        return 1.0 - math.sqrt(self.settings.factor * nats(signal.entropy)) >= self.threshold

    def observe(self, step: Step) -> None:
        """Move the threshold; a step that drafted nothing says nothing."""
        if step.drafted == 0:
            return
        constants = self.settings
        self._rate = constants.rate_memory * self._rate + (1 - constants.rate_memory) * step.accepted / step.drafted
        if self._rate < constants.target:
            move = constants.step
        else:
            move = 0.0 if step.accepted == self.gamma else -constants.step
        self.threshold += (1 - constants.threshold_memory) * move


@register_policy(
    "adaedl",
    "drafts on while an entropy bound on acceptance is high, by a threshold that adapts (AdaEDL)",
    grid={"threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), "factor": (0.1, 0.2, 0.4), "step": (0.0, 0.01, 0.1)},
)
def adaedl(
    threshold: float = 0.6, factor: float = 0.2, target: float = 0.9, step: float = 0.01, *, gamma_max: int
) -> Policy:
    """Stop at a low entropy-based bound of acceptance, with a threshold that follows the acceptance rate."""
    check_share("adaedl", "threshold", threshold)
    check_positive("adaedl", "factor", factor)
    check_share("adaedl", "target", target)
    check_share("adaedl", "step", step)
    return AdaEDL(gamma_max, AdaEDLSettings(threshold, factor, target, step))
