"""Drafting for several requests at once, as in a server: at each depth one pass of the draft model over all of them.

Greedy drafts only. Each request gets the draft that a drafter of its own would make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftgauge.core.errors import ModelError, warn
from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.models.device import upload
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import StaticRows
from draftgauge.policies.base import Signal
from draftgauge.verification.sampling import read_signals

TAKEN_IN_TOGETHER = 8  # most committed tokens of a row that are processed in the first pass over all rows
FIRST_ROWS, FIRST_CAPACITY = 4, 512  # of the cache before it first doubles
WORTH_KEEPING = 16  # fewest shared tokens for which a new text takes over the row of a closed one


@dataclass(frozen=True)
class Asked:
    """Arguments of :meth:`~draftgauge.drafters.base.Drafter.propose` for a row."""

    limit: int
    keep_drafting: KeepDrafting | None = None
    reads: Reads = OF_DRAFTED_TOKENS


class RowDrafter(Protocol):
    """Follows several texts, each in a numbered row."""

    def open(self, context: list[int]) -> int: ...

    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]: ...

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None: ...

    def close(self, row: int) -> None: ...


class EachRow:
    """Any kind of drafter: one for each text, asked one after the other."""

    def __init__(self, new_drafter: Callable[[], Drafter]) -> None:
        self._new = new_drafter
        self._drafters: dict[int, Drafter] = {}
        self._next = 0

    def open(self, context: list[int]) -> int:
        row, self._next = self._next, self._next + 1
        self._drafters[row] = self._new()
        self._drafters[row].prefill(context)
        return row

    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]:
        return {row: self._drafters[row].propose(a.limit, a.keep_drafting, a.reads) for row, a in asked.items()}

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None:
        self._drafters[row].commit(accepted, tokens)

    def close(self, row: int) -> None:
        del self._drafters[row]


@dataclass
class _OpenDraft:
    limit: int
    tokens: list[int] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)


class LanguageModelRows:
    """A draft model over many texts; see :class:`~draftgauge.drafters.language_model.LanguageModelDrafter`.

    Keys and values of a closed text stay until their row is needed. A new text with the same beginning reuses them: a
    request that was preempted, or the next turn of a conversation.
    """

    def __init__(
        self, model: LeanModel, end_tokens: frozenset[int] = frozenset(), vocabulary: int | None = None
    ) -> None:
        self._rows = StaticRows(model, FIRST_ROWS, min(FIRST_CAPACITY, model.spec.context))
        self._end_tokens = end_tokens
        self._vocabulary = vocabulary
        self._texts: dict[int, list[int]] = {}
        self._closed: dict[int, NDArray[np.int64]] = {}  # row -> the text that it still holds, the oldest first

    def open(self, context: list[int]) -> int:
        """A row in which all tokens except the last are processed."""
        context = self._readable(context)
        row = self._row_for(context)
        self._texts[row] = context
        if len(context) <= self._rows.spec.context and self._room(row, len(context)) == len(context):
            self._take_in(row, len(context) - 1)
        return row

    @torch.inference_mode()
    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]:
        """The drafts of these rows, made together; empty for a text longer than the model's context or the memory."""
        drafts: dict[int, Draft] = {row: Draft([]) for row in asked}
        drafting: dict[int, _OpenDraft] = {}
        for row, each in asked.items():
            limit = min(each.limit, self._rows.spec.context - len(self._texts[row]) + 1)
            if limit > 0:
                before = len(self._texts[row]) - 1
                limit = self._room(row, before + limit) - before
            if limit > 0:
                drafting[row] = _OpenDraft(limit)
                self._take_in(row, len(self._texts[row]) - TAKEN_IN_TOGETHER)
        going = sorted(drafting)
        feed = [self._texts[row][self._rows.length(row) :] for row in going]
        while going:
            counts = [len(fed) for fed in feed]
            flat = upload([token for fed in feed for token in fed], self._rows.spec.device)
            last = [end - 1 for end in accumulate(counts)]
            logits = self._rows.step(going, counts, flat)[last, : self._vocabulary]
            asking = [asked[row] for row in going]
            reads: Reads = frozenset().union(*(each.reads for each in asking if each.keep_drafting))
            feed_next: dict[int, list[int]] = {}
            for row, each, shown in zip(going, asking, read_signals(logits, logits.argmax(-1), reads), strict=True):
                draft, (confidence, entropy, margin, token) = drafting[row], shown
                draft.tokens.append(token)
                ends = len(draft.tokens) == draft.limit or token in self._end_tokens
                if each.keep_drafting is not None:
                    text = token if SignalName.TEXT in each.reads else -1
                    draft.signals.append(Signal(len(draft.tokens), confidence, entropy, margin, text))
                    ends = ends or not each.keep_drafting(draft.signals[-1])
                if not ends:
                    feed_next[row] = [token]
            going, feed = list(feed_next), list(feed_next.values())
        return drafts | {row: Draft(draft.tokens, None, draft.signals) for row, draft in drafting.items()}

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None:
        agreed = len(self._texts[row]) + accepted
        if row < self._rows.rows and self._rows.length(row) > agreed:
            self._rows.truncate(row, agreed)
        self._texts[row] += self._readable(tokens)

    def close(self, row: int) -> None:
        text = self._texts.pop(row)
        if row < self._rows.rows:
            self._closed[row] = np.array(text[: self._rows.length(row)], np.int64)

    def _readable(self, tokens: list[int]) -> list[int]:
        last = self._rows.spec.vocabulary - 1
        return [min(token, last) for token in tokens]

    def _row_for(self, context: list[int]) -> int:
        """The free row that holds the longest beginning of a text, truncated to it; if that is short, an empty row."""
        needed, shared = np.array(context[:-1], np.int64), {}  # row -> tokens that it begins with alike
        for row, text in self._closed.items():
            length = min(len(text), len(needed))
            shared[row] = int((text[:length] == needed[:length]).cumprod().sum())
        best = max(shared, key=shared.__getitem__, default=None)
        if best is not None and shared[best] >= WORTH_KEEPING:
            del self._closed[best]
            self._rows.truncate(best, shared[best])
            return best
        unused = [row for row in range(self._rows.rows) if row not in self._texts and row not in self._closed]
        if unused:
            return unused[0]
        if self._closed:
            oldest = next(iter(self._closed))
            del self._closed[oldest]
            self._rows.truncate(oldest, 0)
            return oldest
        return max(self._rows.rows - 1, *self._texts) + 1

    def _room(self, row: int, length: int) -> int:
        """How many of so many tokens the cache holds in this row; it is made larger as far as memory reaches."""
        held, capacity, context = self._rows.rows, self._rows.capacity, self._rows.spec.context
        for rows, size in ((2 * held, 2 * capacity), (0, 0)):  # twice as much, else what is needed
            if row < self._rows.rows and length <= self._rows.capacity:
                break
            more = held if row < held else max(rows, row + 1)
            try:
                self._rows.reserve(more, capacity if length <= capacity else min(max(size, length), context))
            except (ModelError, torch.OutOfMemoryError):
                warn("the draft model's cache outgrows the memory: some texts are not drafted for")
        return min(length, self._rows.capacity) if row < self._rows.rows else 0

    def _take_in(self, row: int, until: int) -> None:
        behind = self._texts[row][self._rows.length(row) : until]
        if behind:
            self._rows.append(row, behind)
