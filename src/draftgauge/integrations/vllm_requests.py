"""The requests of a vLLM batch, which a proposer is told of by their texts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from draftgauge.drafters.base import Draft, completed
from draftgauge.policies.base import Extends, Policy, Signal, Trims


@dataclass
class Request:
    """One request.

    Attributes:
        text: its token ids as vLLM's bytes, so that comparing long texts takes no time.
        length: of the text in tokens.
        last: its last token.
        row: its number in the drafter.
        policy: its own.
        draft: what was last proposed for it.
        asked: after how many drafted tokens of the present step the policy was asked whether to go on.
    """

    text: bytes
    length: int
    last: int
    row: int
    policy: Policy
    draft: Draft = field(default_factory=lambda: Draft([]))
    asked: int = 0

    def keep_drafting(self, signal: Signal) -> bool:
        """The policy's answer after a drafted token."""
        self.asked += 1
        return self.policy.keep_drafting(signal)

    def completed(self, draft: Draft, room: int) -> Draft:
        """The draft as it is to be verified, ``room`` tokens at most (:func:`draftgauge.drafters.base.completed`)."""
        policy = self.policy
        return completed(policy, draft, self.asked, room) if isinstance(policy, (Extends, Trims)) else draft


class Sighting(NamedTuple):
    """A request of this batch.

    Attributes:
        committed: the tokens that the last step committed, at least one.
        tokens: ``[length]`` the text with them.
        request: the one that had this text without them; None if there is none.
    """

    committed: list[int]
    tokens: NDArray[np.int32]
    request: Request | None


def match(
    requests: Sequence[Request],
    sampled: Sequence[Sequence[int]],
    lengths: Sequence[int],
    texts: NDArray[np.int32],
) -> list[Sighting | None]:
    """Find the requests of a batch again; requests of one text are taken in their order.

    Args:
        requests: those of the last batch.
        sampled: of each request of this batch the tokens that the last step committed; none while its prompt is read.
        lengths: of the texts.
        texts: ``[requests, longest text]``.

    Returns:
        In the order of the batch; None for a request whose prompt is being read.
    """
    by_length: dict[int, list[Request]] = {}
    for request in requests:
        by_length.setdefault(request.length, []).append(request)
    seen: list[Sighting | None] = []
    for index, each in enumerate(sampled):
        committed = [int(token) for token in each]
        if not committed:
            seen.append(None)
            continue
        tokens = texts[index, : int(lengths[index])]
        before = len(tokens) - len(committed)
        candidates = by_length.get(before)
        matched = _take(candidates, tokens[:before].tobytes()) if candidates else None
        seen.append(Sighting(committed, tokens, matched))
    return seen


def _take(candidates: list[Request], text: bytes) -> Request | None:
    """The first candidate with this text, taken out of the list."""
    for index, request in enumerate(candidates):
        if request.text == text:
            return candidates.pop(index)
    return None
