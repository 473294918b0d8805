"""One row of a batch of transformers' ``generate``: its text, and what processors and criteria are shown of it.

Rows are decoded one by one. Logits processors and stopping criteria may depend on the whole batch, though: on the
padding to the left of a prompt, or on the number of a row. So they are shown a batch in which every row is this one,
and the answer is taken from this row's place in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from draftgauge.decoding.wrapping import WrappedModel
from draftgauge.models.base import CachedModel


@dataclass(frozen=True)
class BatchRow:
    """One row.

    Attributes:
        index: its place in the batch.
        batch: number of rows.
        padding: ids to the left of the prompt.
        prompt: at least one token id.
        device: of the ids that processors and criteria see.
    """

    index: int
    batch: int
    padding: list[int]
    prompt: list[int]
    device: torch.device

    def shown(self, text: list[int]) -> Tensor:
        """``[batch, padding and text]`` ids in which every row is this one; the text starts with the prompt."""
        ids = torch.tensor([self.padding + text], device=self.device)
        return ids.expand(self.batch, -1)


class ProcessedModel(WrappedModel):
    """A target whose logits of the output pass through logits processors, each row with the text that precedes it.

    Behind a drafted token that cannot be accepted nothing is processed: plain decoding never sees such a text, and a
    processor may refuse it (``prefix_allowed_tokens_fn``). Those rows are never read.
    """

    def __init__(
        self, model: CachedModel, processors: LogitsProcessorList, row: BatchRow, greedy: bool, keeps: bool
    ) -> None:
        """Wrap a model for one row.

        Args:
            model: its cache stays the only one.
            processors: none of them keeps a state from call to call.
            row: what is decoded.
            greedy: whether only the most probable token is accepted.
            keeps: keep logits and scores of the output, for :meth:`logits` and :meth:`scores`.
        """
        super().__init__(model)
        self._processors = processors
        self._row = row
        self._greedy = greedy
        self._keeps = keeps
        self._text: list[int] = []
        self._first = len(row.prompt) - 1  # the prompt's last token gives the first logits of the output
        self._logits: list[Tensor] = []  # [V] each
        self._scores: list[Tensor] = []

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and return scores, which are what the processors make of the logits."""
        start = self.model.length
        self._text[start:] = tokens.tolist()
        logits = self.model.forward(tokens, last_only)
        if start < self._first:  # the prompt, whose logits are not read
            return logits
        scores = self._process(logits, start)
        if self._keeps:
            kept = start - self._first
            self._logits[kept:] = logits.unbind()
            self._scores[kept:] = scores.unbind()
        return scores

    def logits(self, tokens: int) -> list[Tensor]:
        """``[V]`` raw logits behind each of the first tokens of the output."""
        return self._logits[:tokens]

    def scores(self, tokens: int) -> list[Tensor]:
        """``[V]`` processed logits behind each of the first tokens of the output."""
        return self._scores[:tokens]

    def _process(self, logits: Tensor, start: int) -> Tensor:
        if not self._processors:
            return logits
        scores, end = logits.clone(), start + len(logits)
        for position in range(start, end):
            row = scores[position - start]
            shown = logits[position - start].to(self._row.device).repeat(self._row.batch, 1)
            processed = self._processors(self._row.shown(self._text[: position + 1]), shown)
            row.copy_(processed[self._row.index])
            if position + 1 < end and not self._can_follow(row, self._text[position + 1]):
                break
        return scores

    def _can_follow(self, scores: Tensor, token: int) -> bool:
        return int(scores.argmax()) == token if self._greedy else bool(scores[token].isfinite())


class CriteriaWatch:
    """Asks stopping criteria after every token of one row, as ``generate`` does."""

    def __init__(
        self, criteria: StoppingCriteriaList, row: BatchRow, scores: Callable[[int], list[Tensor]] | None
    ) -> None:
        """Watch a row.

        Args:
            criteria: to ask.
            row: what is decoded.
            scores: gives the scores of the first tokens of the output; None where criteria get none.
        """
        self._criteria = criteria
        self._row = row
        self._scores = scores
        self._text = list(row.prompt)

    def __call__(self, token: int) -> bool:
        """Take the next token: does any criterion end the output here?"""
        self._text.append(token)
        scores = None
        if self._scores is not None:
            kept = self._scores(len(self._text) - len(self._row.prompt))
            scores = tuple(row.expand(self._row.batch, -1) for row in kept)
        return bool(self._criteria(self._row.shown(self._text), scores)[self._row.index])
