"""The same draft length at every step, 0 being no speculation: the baselines of every other policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import NO_SIGNALS, Reads
from draftgauge.policies.base import Policy, PolicyBase, SignalArrays
from draftgauge.policies.spec import NO_DRAFT, register_policy


@dataclass(frozen=True)
class FixedLength(PolicyBase):
    """Drafts ``gamma`` tokens at every step (Leviathan et al. 2023, section 2); with 0 it never speculates."""

    gamma: int
    reads: ClassVar[Reads] = NO_SIGNALS

    def lengths(self, signals: SignalArrays) -> NDArray[np.int64]:
        return np.full(signals.positions, self.gamma, np.int64)


@register_policy(NO_DRAFT, "the speculative loop with nothing drafted")
def no_speculation() -> Policy:
    return FixedLength(0)


@register_policy("fixed", "always drafts that many tokens", complexity=1)
def fixed(gamma: int, *, gamma_max: int) -> Policy:
    if not 0 <= gamma <= gamma_max:
        raise DraftgaugeError(f"policy fixed:{gamma}: gamma must be 0 to {gamma_max}, the longest draft here")
    return FixedLength(gamma)
