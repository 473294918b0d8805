"""Drafts from the text alone, or from the text where it is matched and else from the drafter: fixed rules of lookup.

Prompt lookup decoding (Saxena 2023) and its relatives in serving systems append a fixed number of tokens wherever an
ending of the text is found again. They are what a rule that prices both sources must beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.signals import Reads, SignalName
from draftgauge.policies.base import DecisionSeconds, Policy, PolicyBase, Signal, Step, StepCosts, TextView, decision_of
from draftgauge.policies.bundled import bundled_policy
from draftgauge.policies.checks import check_tokens
from draftgauge.policies.first_occurrences import FirstOccurrences
from draftgauge.policies.registry import make_policy, register_policy
from draftgauge.policies.stopping import ThroughputStopping
from draftgauge.policies.stored_policies import charged
from draftgauge.policies.stored_texts import BackedIndex, StoredTexts
from draftgauge.policies.suffix import ORDER, SuffixIndex
from draftgauge.policies.suffix_columns import continuations_of, matched_lengths

Ints = NDArray[np.int64]

NOTHING = DecisionSeconds()


def index_seconds() -> DecisionSeconds:
    """What an index of the text takes, as measured where the bundled stopping policy was fitted."""
    reading = float(bundled_policy("stopping").parameters["reading_seconds"])
    return DecisionSeconds(reading=reading, committed=reading)


class TextLookup(PolicyBase):
    """No drafted token, and up to ``tokens`` that followed the last time, as long as enough of the ending matches."""

    reads: ClassVar[Reads] = frozenset({SignalName.TEXT})

    def __init__(self, least: int, tokens: int, decision: DecisionSeconds = NOTHING) -> None:
        """Set the rule.

        Args:
            least: shortest ending, in tokens, after which what followed is taken.
            tokens: most tokens of a step.
            decision: what reading and growing the index takes.
        """
        self.least, self.tokens, self.decision = least, tokens, decision
        self.stored: StoredTexts | None = None
        self._index = SuffixIndex()

    def ask_stored(self, stored: StoredTexts) -> None:
        self.stored, self._index = stored, BackedIndex(stored)
        self.decision = charged(self.decision, stored)

    def reset(self) -> None:
        self._index.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self._index.read(prompt_tokens)

    def limit(self) -> int:
        return 0

    def extend(self, room: int) -> Sequence[int]:
        return self._index.continuation(min(room, self.tokens), self.least)

    def observe(self, step: Step) -> None:
        self._index.commit(step.tokens)

    def text_lengths(self, view: TextView) -> Ints:
        return np.zeros(len(view.token), np.int64)

    def appended_lengths(self, view: TextView, drafted: Ints) -> Ints:
        return np.minimum(matched_lengths(continuations_of(view)[0].cell, self.least), self.tokens)


class FirstMatchLookup(PolicyBase):
    """Prompt lookup as in transformers: copies ``tokens`` tokens from behind the longest n-gram's first occurrence."""

    reads: ClassVar[Reads] = frozenset({SignalName.TEXT})

    def __init__(self, ngram: int, tokens: int, decision: DecisionSeconds = NOTHING) -> None:
        self.tokens, self.decision = tokens, decision
        self._text = FirstOccurrences(ngram)

    def reset(self) -> None:
        self._text.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self._text.extend(prompt_tokens)

    def limit(self) -> int:
        return 0

    def extend(self, room: int) -> Sequence[int]:
        return self._text.continuation(min(room, self.tokens))

    def observe(self, step: Step) -> None:
        self._text.extend(step.tokens)


class LookupElse:
    """Takes what the text foretells where its ending matches far enough, and else drafts as stopping does."""

    reads: ClassVar[Reads] = ThroughputStopping.reads

    def __init__(self, least: int, tokens: int, stopping: ThroughputStopping) -> None:
        self.least, self.tokens = least, tokens
        self.stopping = stopping
        self.stored: StoredTexts | None = None
        self.decision = decision_of(stopping)
        self._looks = False

    def ask_stored(self, stored: StoredTexts) -> None:
        """Look tokens up in stored texts too, and judge drafted ones by them."""
        self.stored = stored
        self.stopping.index = BackedIndex(stored)
        self.decision = charged(self.decision, stored)

    def reset(self) -> None:
        self.stopping.reset()

    def read(self, prompt_tokens: Sequence[int]) -> None:
        self.stopping.read(prompt_tokens)

    def limit(self) -> int:
        """Nothing where the text is asked."""
        index = self.stopping.index
        self._looks = index.look_up(index.tail)[1] >= self.least
        return 0 if self._looks else self.stopping.limit()

    def keep_drafting(self, signal: Signal) -> bool:
        return self.stopping.keep_drafting(signal)

    def trims(self) -> bool:
        return self.stopping.trims()

    def extend(self, room: int) -> Sequence[int]:
        return self.stopping.index.continuation(min(room, self.tokens), self.least) if self._looks else ()

    def observe(self, step: Step) -> None:
        self.stopping.observe(step)

    def text_lengths(self, view: TextView) -> Ints:
        """As stopping does where the text is not asked."""
        lengths = self.stopping.text_lengths(view)
        assert lengths is not None, "this stopping does not learn"
        return np.where(self.appended_lengths(view, lengths) > 0, 0, lengths)

    def trimmed(self, view: TextView, drafted: Ints) -> Ints:
        return self.stopping.trimmed(view, drafted)

    def appended_lengths(self, view: TextView, drafted: Ints) -> Ints:
        return np.minimum(matched_lengths(continuations_of(view)[0].cell, self.least), self.tokens)


_TOKENS = (2, 3, 4, 6, 8, 12, 16)


def _check_least(name: str, least: int) -> None:
    """Raise ``DraftgaugeError`` unless endings of ``least`` tokens are looked up."""
    check_tokens(name, "least", least)
    if least > ORDER:
        raise DraftgaugeError(f"policy {name}: least must be at most {ORDER}, the longest ending, not {least}")


@register_policy(
    "lookup",
    "drafts nothing and appends what followed the same words the last time (prompt lookup)",
    grid={"least": (1, 2, 3, 4), "tokens": _TOKENS},
)
def lookup(least: int = 2, tokens: int = 8, *, gamma_max: int) -> Policy:
    """Prompt lookup after the last occurrence of an ending of at least ``least`` tokens."""
    _check_least("lookup", least)
    check_tokens("lookup", "tokens", tokens)
    return TextLookup(least, min(tokens, gamma_max), index_seconds())


@register_policy(
    "hf-prompt-lookup",
    "drafts nothing and copies what followed the same words the first time (transformers' prompt lookup)",
    grid={"ngram": (1, 2, 3, 4), "tokens": _TOKENS},
)
def hf_prompt_lookup(ngram: int = 2, tokens: int = 10, *, gamma_max: int) -> Policy:
    """``prompt_lookup_num_tokens`` and ``max_matching_ngram_size`` of transformers."""
    check_tokens("hf-prompt-lookup", "ngram", ngram)
    check_tokens("hf-prompt-lookup", "tokens", tokens)
    return FirstMatchLookup(ngram, min(tokens, gamma_max), index_seconds())


@register_policy(
    "lookup-else-stopping",
    "appends what followed the same words the last time where enough of them match, else drafts as stopping",
    grid={"least": (2, 3, 4), "tokens": _TOKENS},
)
def lookup_else_stopping(least: int = 2, tokens: int = 8, *, gamma_max: int, costs: StepCosts) -> Policy:
    """The text where an ending of at least ``least`` tokens matches, else throughput-optimal stopping."""
    _check_least("lookup-else-stopping", least)
    check_tokens("lookup-else-stopping", "tokens", tokens)
    inner = make_policy("stopping", gamma_max, costs)
    assert isinstance(inner, ThroughputStopping)
    return LookupElse(least, min(tokens, gamma_max), inner)
