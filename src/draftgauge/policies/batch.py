"""Policies in a batch whose requests take every step together, one policy a slot.

The batch drafts by depth: at each one some of the requests draft a token in one pass. The same objects run live
(:mod:`draftgauge.decoding.batched`) and in replay (:mod:`draftgauge.replaying.batched`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Extends, Policy, Signal, Step, StepCosts, asks_after_each_token, begin, reads_of
from draftgauge.policies.registry import make_policy


class BatchPolicy(Protocol):
    """Decides for all requests of a batch. A *slot* is a place in the batch, which one request holds at a time."""

    @property
    def reads(self) -> Reads:
        """The signals that it reads; without any of drafted tokens, the drafted tokens need not be read by depth."""
        ...

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None: ...

    def first(self, caps: Mapping[int, int]) -> list[int]:
        """A step begins: the slots that draft a token.

        Args:
            caps: by slot, the most tokens that its request may draft, possibly 0; every request of the batch is in it.
        """
        ...

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        """Which of these slots draft another token."""
        ...

    def observe(self, slot: int, step: Step) -> None: ...


class PerRequest:
    """Every request of a batch decides for itself."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        """One policy a slot, of the same kind.

        Raises:
            DraftgaugeError: for a policy that appends tokens that it looks up in the text, or reads the target's
                entropy.
        """
        if isinstance(policies[0], Extends):
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} looks tokens up in the text, which batches do not have"
            )
        self.reads = reads_of(policies[0])
        if SignalName.TARGET_ENTROPY in self.reads:
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} reads the target's entropy, which batches do not compute"
            )
        self._policies = policies
        self._asks = asks_after_each_token(self.reads)
        self._limits: dict[int, int] = {}

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        begin(self._policies[slot], prompt_tokens)

    def first(self, caps: Mapping[int, int]) -> list[int]:
        self._limits = {slot: min(self._policies[slot].limit(), cap) for slot, cap in caps.items()}
        return [slot for slot, limit in self._limits.items() if limit > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if self._goes_on(slot, signal)]

    def observe(self, slot: int, step: Step) -> None:
        self._policies[slot].observe(step)

    def _goes_on(self, slot: int, signal: Signal) -> bool:
        within = signal.depth < self._limits[slot]
        return within and (not self._asks or self._policies[slot].keep_drafting(signal))


def make_batch_policy(spec: str, slots: int, gamma_max: int, costs: StepCosts | None) -> BatchPolicy:
    """A new policy for each of up to ``slots`` requests at once; arguments as of
    :func:`~draftgauge.policies.registry.make_policy`.
    """
    return PerRequest([make_policy(spec, gamma_max, costs) for _ in range(slots)])
