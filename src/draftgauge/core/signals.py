"""The signals that a policy can declare: the live loop computes exactly those, and replay charges for them."""

from __future__ import annotations

from enum import StrEnum


class SignalName(StrEnum):
    """One signal.

    Confidence, entropy and margin are of the drafter's distribution behind a drafted token, the target's entropy is of
    its distribution behind the last committed token. ``TEXT`` is the tokens themselves: those of the prompt, drafted
    and committed.
    """

    CONFIDENCE = "confidence"
    ENTROPY = "entropy"
    MARGIN = "margin"
    TARGET_ENTROPY = "target_entropy"
    TEXT = "text"


Reads = frozenset[SignalName]
"""The set of signals that a policy reads."""

NO_SIGNALS: Reads = frozenset()
DISTRIBUTION: Reads = frozenset({SignalName.CONFIDENCE, SignalName.ENTROPY, SignalName.MARGIN})
"""The signals that take the drafter's probabilities."""
OF_DRAFTED_TOKENS: Reads = DISTRIBUTION | {SignalName.TEXT}
"""The signals of a drafted token: a policy that reads one of them is asked after each one whether to go on."""
