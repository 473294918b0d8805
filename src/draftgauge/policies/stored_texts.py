"""Texts of earlier requests, in which a policy may look tokens up beside the text of the running one.

Retrieval from a datastore (REST, He et al. 2023; SuffixDecoding, Oliaro et al. 2024). An n-gram is looked up in the
request's own text first; a match in the stored texts counts where it is longer. These do not change while a request
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol, runtime_checkable

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy
from draftgauge.policies.ngrams import NgramIndex


class StoredTexts:
    """Texts that do not change, none going on into the next; later ones count before earlier ones."""

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        self.texts = [[int(token) for token in text] for text in texts]

    @cached_property
    def index(self) -> NgramIndex:
        index = NgramIndex(capacity=None)
        for text in self.texts:
            index.separate()
            index.extend(text)
        return index


@runtime_checkable
class AsksStored(Protocol):
    """A policy that can look tokens up in stored texts too."""

    def ask_stored(self, stored: StoredTexts) -> None: ...


def with_stored(policies: Sequence[Policy], stored: StoredTexts) -> None:
    """Let all policies that can look tokens up in stored texts do so."""
    able = [policy for policy in policies if isinstance(policy, AsksStored)]
    if not able:
        raise DraftgaugeError(
            "none of the policies looks tokens up in a text, so a datastore changes nothing: leave it out, or add "
            "two-source, lookup or lookup-else-stopping"
        )
    for policy in able:
        policy.ask_stored(stored)
