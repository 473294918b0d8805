"""One row of a batch of transformers' ``generate``: its text, and what processors and criteria are shown of it.

Rows are decoded one by one. But logits processors and stopping criteria may depend on the whole batch: on a prompt's
padding, or on a row's number. So they are shown a batch in which every row is this one, and the answer is taken from
this row's place in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from draftgauge.models.base import CachedModel


@dataclass(frozen=True)
class BatchRow:
    """One row."""

    index: int  # in the batch
    batch: int  # number of rows
    padding: list[int]  # ids to the left of the prompt
    prompt: list[int]  # at least one token id
    device: torch.device  # of the ids that processors and criteria see

    def shown(self, text: list[int]) -> Tensor:
        """``[batch, padding and text]`` ids in which every row is this one; the text starts with the prompt."""
        ids = torch.tensor([self.padding + text], device=self.device)
        return ids.expand(self.batch, -1)


class ProcessedModel:
    """A target whose logits of the output pass through logits processors, each row with the text that precedes it.

    After a drafted token that cannot be accepted nothing is processed: plain decoding never sees such a text, and a
    processor may refuse it (``prefix_allowed_tokens_fn``). Those logits are never read.
    """

    def __init__(self, model: CachedModel, processors: LogitsProcessorList, row: BatchRow, greedy: bool) -> None:
        """Wrap a model for one row; ``greedy`` accepts only the most probable token."""
        self.spec, self.module = model.spec, model.module
        self._model = model
        self._processors = processors
        self._row = row
        self._greedy = greedy
        self._text: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and return ``[tokens, V]`` scores, which are what the processors make of the logits."""
        start = self._model.length
        self._text[start:] = tokens.tolist()
        logits = self._model.forward(tokens, last_only)
        if start < len(self._row.prompt) - 1:  # the prompt, whose logits are not read
            return logits
        scores, end = logits.clone(), start + len(logits)
        for position in range(start, end):
            row = scores[position - start]
            shown = logits[position - start].to(self._row.device).repeat(self._row.batch, 1)
            processed = self._processors(self._row.shown(self._text[: position + 1]), shown)
            row.copy_(processed[self._row.index])
            token = self._text[position + 1] if position + 1 < end else None
            if token is not None and not (row.argmax() == token if self._greedy else row[token].isfinite()):
                break
        return scores


class CriteriaWatch:
    """Asks stopping criteria after every token of one row, as ``generate`` does."""

    def __init__(self, criteria: StoppingCriteriaList, row: BatchRow) -> None:
        self._criteria = criteria
        self._row = row
        self._text = list(row.prompt)

    def __call__(self, token: int) -> bool:
        """Take the next token: does any criterion end the output here?"""
        self._text.append(token)
        return bool(self._criteria(self._row.shown(self._text), None)[self._row.index])
