"""Drafting for several texts at once, as in a server: one pass of the draft model a depth, over all rows that go on.

Greedy drafts alone. Row by row they are those of the drafters of single texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, Drafter, KeepDrafting
from draftgauge.models.lean import LeanModel
from draftgauge.models.lean_rows import LeanRows
from draftgauge.policies.base import Signal
from draftgauge.verification import read_signals

TAKEN_IN_TOGETHER = 8  # committed tokens of a row at most that go through with the other rows' first pass


@dataclass(frozen=True)
class Asked:
    """What is asked for a row; as of :meth:`~draftgauge.drafters.base.Drafter.propose`."""

    limit: int
    keep_drafting: KeepDrafting | None = None
    reads: Reads = OF_DRAFTED_TOKENS


class RowDrafter(Protocol):
    """Follows several texts, each by a number."""

    def open(self, context: list[int]) -> int:
        """Start to follow a text; its number."""
        ...

    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]:
        """Drafts for some of the texts."""
        ...

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None:
        """A step of a text committed ``tokens``, the first ``accepted`` of them drafted."""
        ...

    def close(self, row: int) -> None:
        """Follow a text no more."""
        ...


class EachRow:
    """Any kind of drafter, one a text, one after the other."""

    def __init__(self, new_drafter: Callable[[], Drafter]) -> None:
        self._new = new_drafter
        self._drafters: dict[int, Drafter] = {}
        self._next = 0

    def open(self, context: list[int]) -> int:
        """A drafter of its own."""
        row, self._next = self._next, self._next + 1
        self._drafters[row] = self._new()
        self._drafters[row].prefill(context)
        return row

    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]:
        """Each text by its drafter."""
        return {row: self._drafters[row].propose(a.limit, a.keep_drafting, a.reads) for row, a in asked.items()}

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None:
        """To the text's drafter."""
        self._drafters[row].commit(accepted, tokens)

    def close(self, row: int) -> None:
        """Forget its drafter."""
        del self._drafters[row]


@dataclass
class _OpenDraft:
    """A draft in the making."""

    asked: Asked
    tokens: list[int]
    signals: list[Signal]


class LanguageModelRows:
    """A draft model over many texts; see :class:`~draftgauge.drafters.language_model.LanguageModelDrafter`."""

    def __init__(
        self, model: LeanModel, end_tokens: frozenset[int] = frozenset(), vocabulary: int | None = None
    ) -> None:
        """Share a model's weights.

        Args:
            model: the draft model.
            end_tokens: a draft ends with any of these.
            vocabulary: number of logits of the target; further ones are not drafted.
        """
        self._rows = LeanRows(model)
        self._end_tokens = end_tokens
        self._vocabulary = vocabulary
        self._texts: dict[int, list[int]] = {}

    def open(self, context: list[int]) -> int:
        """A row that has taken in all but the last token."""
        row = self._rows.open()
        self._texts[row] = list(context)
        if 1 < len(context) <= self._rows.spec.context:
            self._take_in(row, len(context) - 1)
        return row

    @torch.inference_mode()
    def propose(self, asked: Mapping[int, Asked]) -> dict[int, Draft]:
        """Drafts of the rows asked for, grown together; empty for a text that outgrew the model's context."""
        drafts: dict[int, Draft] = {row: Draft([]) for row in asked}
        drafting: dict[int, _OpenDraft] = {}
        for row, each in asked.items():
            limit = min(each.limit, self._rows.spec.context - len(self._texts[row]) + 1)
            if limit > 0:
                drafting[row] = _OpenDraft(Asked(limit, each.keep_drafting, each.reads), [], [])
                self._take_in(row, len(self._texts[row]) - TAKEN_IN_TOGETHER)
        going = list(drafting)
        feed = [self._texts[row][self._rows.length(row) :] for row in going]
        while going:
            logits = self._rows.step(going, [self._tensor(tokens) for tokens in feed])[:, : self._vocabulary]
            chosen = logits.argmax(-1).tolist()
            on = [
                self._goes_on(drafting[row], token, logits[index : index + 1])
                for index, (row, token) in enumerate(zip(going, chosen, strict=True))
            ]
            feed = [[token] for token, more in zip(chosen, on, strict=True) if more]
            going = [row for row, more in zip(going, on, strict=True) if more]
        return drafts | {row: Draft(draft.tokens, None, draft.signals) for row, draft in drafting.items()}

    def commit(self, row: int, accepted: int, tokens: list[int]) -> None:
        """Roll the row back to what was accepted and remember the text."""
        agreed = len(self._texts[row]) + accepted
        if self._rows.length(row) > agreed:
            self._rows.truncate(row, agreed)
        self._texts[row] += tokens

    def close(self, row: int) -> None:
        """Free the row."""
        self._rows.close(row)
        del self._texts[row]

    def _take_in(self, row: int, until: int) -> None:
        behind = self._texts[row][self._rows.length(row) : until]
        if behind:
            self._rows.prefill(row, self._tensor(behind))

    def _goes_on(self, draft: _OpenDraft, token: int, logits: torch.Tensor) -> bool:
        """Add a drafted token; whether another one is drafted. As :class:`DraftBuilder` grows a single draft."""
        asked = draft.asked
        draft.tokens.append(token)
        if asked.keep_drafting is not None:
            shown = token if SignalName.TEXT in asked.reads else -1
            confidence, entropy, margin, _ = read_signals(logits, self._tensor([token]), asked.reads)
            draft.signals.append(Signal(len(draft.tokens), confidence, entropy, margin, shown))
        if len(draft.tokens) == asked.limit or token in self._end_tokens:
            return False
        return asked.keep_drafting is None or asked.keep_drafting(draft.signals[-1])

    def _tensor(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor(tokens, device=self._rows.spec.device)
