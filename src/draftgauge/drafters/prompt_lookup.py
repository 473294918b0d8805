"""Drafting without a model: what followed the same words earlier in the text, as the policy ``lookup`` appends it.

Saxena 2023, "Prompt Lookup Decoding"; see :meth:`~draftgauge.policies.ngrams.NgramIndex.continuation`.
"""

from __future__ import annotations

import math

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, Drafting, DraftSource, KeepDrafting, LoadOptions, Source, register_drafter
from draftgauge.models.base import CachedModel
from draftgauge.models.taps import Taps
from draftgauge.policies.base import Signal
from draftgauge.policies.ngrams import LEAST, LONGEST, NgramIndex


class PromptLookupDrafter:
    """Proposes the continuation of the first earlier occurrence of the last ``least`` to ``longest`` tokens.

    It has no distribution: its proposal counts as one-hot (confidence 1, entropy 0, margin 1), so a policy that
    stops when unsure never stops it.
    """

    def __init__(self, end_tokens: frozenset[int] = frozenset(), least: int = LEAST, longest: int = LONGEST) -> None:
        self._index, self._least, self._longest = NgramIndex(), least, longest
        self.end_tokens = end_tokens

    def prefill(self, context: list[int]) -> None:
        self._index.reset()
        self._index.extend(context)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        """Copy up to ``limit`` tokens; none if too few at the end of the text occurred before."""
        tokens: list[int] = []
        shown: list[Signal] = []
        confidence, entropy, margin = (
            value if name in reads else math.nan
            for name, value in ((SignalName.CONFIDENCE, 1.0), (SignalName.ENTROPY, 0.0), (SignalName.MARGIN, 1.0))
        )
        found = self._index.continuation(limit, self._least, self._longest)
        for token in found:
            tokens.append(token)
            if keep_drafting is not None:
                text = token if SignalName.TEXT in reads else -1
                shown.append(Signal(len(tokens), confidence, entropy, margin, text))
            if token in self.end_tokens:
                break
            if keep_drafting is not None and len(tokens) < len(found) and not keep_drafting(shown[-1]):
                break
        return Draft(tokens, None, shown)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._index.extend(tokens)


@register_drafter
class PromptLookupSource(DraftSource):
    """The text itself."""

    name = "prompt_lookup"
    drafter_type = PromptLookupDrafter

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> PromptLookupSource:
        return cls()

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> PromptLookupDrafter:
        return PromptLookupDrafter(how.end_tokens)

    def fingerprint(self) -> str:
        """The rule, so that no run that was recorded by another one is continued."""
        return f"first of {LEAST} to {LONGEST} tokens"
