"""Policies that look tokens up in stored texts too: how they come by them, and what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import DecisionSeconds, Policy
from draftgauge.policies.stored_texts import StoredTexts


@runtime_checkable
class AsksStored(Protocol):
    """A policy that can look tokens up in stored texts too."""

    def ask_stored(self, stored: StoredTexts) -> None:
        """Look up in these from now on; asked once, before the first request."""
        ...


def stored_of(policy: Policy) -> StoredTexts | None:
    """The stored texts that a policy looks tokens up in; None without any."""
    stored: StoredTexts | None = getattr(policy, "stored", None)
    return stored


def with_stored(policies: Sequence[Policy], stored: StoredTexts) -> None:
    """Let all policies that can look tokens up in stored texts do so.

    Raises:
        DraftgaugeError: if none of them can.
    """
    able = [policy for policy in policies if isinstance(policy, AsksStored)]
    if not able:
        raise DraftgaugeError(
            "none of the policies looks tokens up in a text, so a datastore changes nothing: leave it out, or add "
            "two-source, gated-lookup, lookup or lookup-else-stopping"
        )
    for policy in able:
        policy.ask_stored(stored)


def charged(decision: DecisionSeconds, stored: StoredTexts) -> DecisionSeconds:
    """What deciding takes with a look-up in stored texts for the step, each drafted and each appended token."""
    seconds = stored.look_up_seconds
    return decision._replace(
        token=decision.token + seconds, step=decision.step + seconds, appended=decision.appended + seconds
    )
