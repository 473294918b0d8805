"""Fixed rules of lookup: drafts from the text alone, or from the text where it is matched and else from the drafter.

Prompt lookup decoding (Saxena 2023) and its relatives append a fixed number of tokens wherever an n-gram at the end of
the text occurred before. They are what a rule that prices both sources must beat.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import Policy, PolicyBase, Signal, Step, check_tokens
from draftgauge.policies.ngrams import LEAST, LONGEST, MOST_MATCHED, NgramIndex
from draftgauge.policies.spec import make_policy, register_policy
from draftgauge.policies.stored_texts import StoredTexts
from draftgauge.traces.costs import CostCurve


class FollowsText(PolicyBase):
    """Keeps an index of prompt and output."""

    def __init__(self) -> None:
        self.index = NgramIndex()

    def reset(self) -> None:
        self.index.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.index.extend(prompt_tokens)

    def observe(self, step: Step) -> None:
        self.index.extend(step.tokens)


class CopiesText(FollowsText):
    """Nothing drafted, and up to ``tokens`` that followed the first time, if ``least`` to ``longest`` tokens match."""

    gamma = 0

    def __init__(self, least: int, tokens: int, longest: int = LONGEST) -> None:
        super().__init__()
        self.reads: Reads = frozenset({SignalName.TEXT})
        self.least, self.tokens, self.longest = least, tokens, longest

    def extend(self, room: int) -> Sequence[int]:
        return self.index.continuation(min(room, self.tokens), self.least, self.longest)


class TextLookup(CopiesText):
    """Prompt lookup, in stored texts too."""

    def ask_stored(self, stored: StoredTexts) -> None:
        self.index = NgramIndex(stored.index)


class LookupElse(TextLookup):
    """Appends looked-up tokens where the match is long enough, and else drafts as another policy does."""

    def __init__(self, least: int, tokens: int, drafting: Policy) -> None:
        super().__init__(least, tokens)
        self.drafting = drafting
        self.reads |= drafting.reads
        self._looks_up = False

    def limit(self) -> int:
        self._looks_up = bool(self.index.continuation(1, self.least))
        return 0 if self._looks_up else self.drafting.limit()

    def keep_drafting(self, signal: Signal) -> bool:
        return self.drafting.keep_drafting(signal)

    def extend(self, room: int) -> Sequence[int]:
        return super().extend(room) if self._looks_up else ()


def _check_least(name: str, least: int) -> None:
    check_tokens(name, "least", least)
    if least > MOST_MATCHED:
        raise DraftgaugeError(f"policy {name}: least must be at most {MOST_MATCHED}, the longest match, not {least}")


@register_policy(
    "lookup",
    "drafts nothing and appends what followed the same words the first time (prompt lookup)",
    complexity=2,
    compared=True,
    grid={"least": (1, 2, 4), "tokens": (4, 8, 16)},
)
def lookup(least: int = LEAST, tokens: int = 8, *, gamma_max: int) -> Policy:
    _check_least("lookup", least)
    check_tokens("lookup", "tokens", tokens)
    return TextLookup(least, min(tokens, gamma_max))


@register_policy(
    "hf-prompt-lookup",
    "lookup by transformers' numbers: n-grams of 1 to `ngram` tokens",
    complexity=2,
    grid={"ngram": (1, 2, 3), "tokens": (4, 10)},
)
def hf_prompt_lookup(ngram: int = 2, tokens: int = 10, *, gamma_max: int) -> Policy:
    check_tokens("hf-prompt-lookup", "ngram", ngram)
    check_tokens("hf-prompt-lookup", "tokens", tokens)
    return CopiesText(1, min(tokens, gamma_max), ngram)


@register_policy(
    "lookup-else-stopping",
    "appends what followed the same words the first time where enough of them match, else drafts as stopping",
    complexity=6,
    grid={"least": (2, 3, 4), "tokens": (4, 8)},
)
def lookup_else_stopping(least: int = LEAST, tokens: int = 8, *, gamma_max: int, costs: CostCurve) -> Policy:
    _check_least("lookup-else-stopping", least)
    check_tokens("lookup-else-stopping", "tokens", tokens)
    return LookupElse(least, min(tokens, gamma_max), make_policy("stopping", gamma_max, costs))
