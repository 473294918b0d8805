"""How far to draft in a batch whose requests take every step together.

The batch drafts by depth: at each one some of the requests draft a token in one pass. The same object runs live
(:mod:`draftgauge.decoding.batched`) and in replay (:mod:`draftgauge.replaying.batched`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import (
    DecisionSeconds,
    Extends,
    Policy,
    Signal,
    Step,
    asks_after_each_token,
    begin,
    decision_of,
    reads_of,
)


class Opening(NamedTuple):
    """What a batch knows of a step that begins.

    Attributes:
        caps: by slot, the most tokens that its request may draft, possibly 0; every request of the batch is in it.
        backlog: by slot, the committed tokens that the drafter takes in with its first pass.
        context: tokens of the longest request.
    """

    caps: Mapping[int, int]
    backlog: Mapping[int, int]
    context: int


class BatchPolicy(Protocol):
    """Decides for all requests of a batch. A *slot* is a place in the batch, which one request holds at a time."""

    @property
    def reads(self) -> Reads:
        """The signals that it reads; without any of drafted tokens, the drafted tokens need not be read by depth."""
        ...

    @property
    def decision(self) -> DecisionSeconds:
        """What deciding takes for each request."""
        ...

    @property
    def ranks(self) -> bool:
        """Whether it ranks the requests, as a step begins and after every drafted token; that takes time of its own."""
        ...

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        """A new request holds the slot."""
        ...

    def first(self, opening: Opening) -> list[int]:
        """A step begins: the slots that draft a token, among those whose cap is above 0."""
        ...

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        """Which of these slots draft another token.

        Args:
            drafted: by slot the token just drafted, those left out whose cap is reached or whose text ended, in
                increasing order. Told of every slot that drafted by :meth:`drafted_last` where it can go no further.
        """
        ...

    def drafted_last(self, slot: int, signal: Signal) -> None:
        """The slot drafted a token and can go no further."""
        ...

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        """How many of the drafted tokens of each slot are verified."""
        ...

    def observe(self, slot: int, step: Step) -> None:
        """How the step went for a slot; ``step.drafted`` counts verified tokens."""
        ...


class PerRequest:
    """Every request decides for itself, by a policy of its own."""

    ranks: ClassVar[bool] = False

    def __init__(self, policies: Sequence[Policy]) -> None:
        """One policy a slot, of the same kind.

        Raises:
            DraftgaugeError: for a policy that goes on with tokens that it looks up in the text, or that reads the
                target's entropy.
        """
        if isinstance(policies[0], Extends):
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} looks tokens up in the text, which batches do not have"
            )
        self._policies = policies
        self.reads = reads_of(policies[0])
        self.decision = decision_of(policies[0])
        if SignalName.TARGET_ENTROPY in self.reads:
            raise DraftgaugeError(
                f"policy {type(policies[0]).__name__} reads the target's entropy, which batches do not compute"
            )
        self._asks = asks_after_each_token(self.reads)
        self._limits: dict[int, int] = {}

    def begin(self, slot: int, prompt_tokens: Sequence[int]) -> None:
        begin(self._policies[slot], prompt_tokens)

    def first(self, opening: Opening) -> list[int]:
        self._limits = {slot: min(self._policies[slot].limit(), cap) for slot, cap in opening.caps.items()}
        return [slot for slot, limit in self._limits.items() if limit > 0]

    def onward(self, drafted: Mapping[int, Signal]) -> list[int]:
        return [slot for slot, signal in drafted.items() if self._goes_on(slot, signal)]

    def drafted_last(self, slot: int, signal: Signal) -> None:
        """A policy is not asked after the last possible token."""

    def verified(self, drafted: Mapping[int, int]) -> Mapping[int, int]:
        return drafted

    def observe(self, slot: int, step: Step) -> None:
        self._policies[slot].observe(step)

    def _goes_on(self, slot: int, signal: Signal) -> bool:
        within = signal.depth < self._limits[slot]
        return within and (not self._asks or self._policies[slot].keep_drafting(signal))
