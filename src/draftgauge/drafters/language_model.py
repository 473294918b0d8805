"""An independent small language model as the drafter."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.drafters.growing import Growing
from draftgauge.models.base import CachedModel
from draftgauge.verification import Sampling


class LanguageModelDrafter:
    """Drafts with a smaller model that shares the target's tokenizer.

    Its cache follows the committed text: ``commit`` rolls it back to what was accepted, and the next ``propose`` takes in
    all committed tokens that it has not seen in one pass. Steps without speculation therefore cost it nothing. Where the
    text outgrows the draft model's own context it proposes nothing more.
    """

    def __init__(
        self,
        model: CachedModel,
        end_tokens: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
        generator: Generator | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """Take the model over; its cache belongs to the drafter from here on.

        Args:
            model: the draft model.
            end_tokens: a draft ends with any of these.
            sampling: how tokens are drafted, greedily if None. Sampled drafts carry their distributions.
            generator: on the model's device; needed for sampled drafts.
            vocabulary: number of logits of the target. A draft model padded to more is cut to it.
        """
        self.model = model
        self.end_tokens = end_tokens
        self.sampling = sampling or Sampling()
        self._growing = Growing(model.spec.device, end_tokens, sampling, generator)
        self._vocabulary = vocabulary if vocabulary is not None and vocabulary < model.spec.vocabulary else None
        self._text: list[int] = []

    def prefill(self, context: list[int]) -> None:
        """Start a new sequence; the last token is left for the first ``propose``, which needs its logits."""
        self.model.reset()
        self._text = list(context)
        if 1 < len(context) <= self.model.spec.context:
            self.model.forward(self._tensor(context[:-1]), last_only=True)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, confidence_only: bool = False) -> Draft:
        """Draft up to ``limit`` tokens, fewer where the draft's context ends: one forward pass for each."""
        limit = min(limit, self.model.spec.context - len(self._text) + 1)
        if limit <= 0:
            return Draft([])
        logits = self._logits(self._tensor(self._text[self.model.length :]))
        return self._growing.grow(logits, self._logits, limit, keep_drafting, confidence_only)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        """Roll the cache back to the accepted part of the proposal and remember the committed tokens."""
        agreed = len(self._text) + accepted
        if self.model.length > agreed:
            self.model.truncate(agreed)
        self._text += tokens

    def _logits(self, tokens: Tensor) -> Tensor:
        """Logits ``[1, V]`` after the tokens ``[k]``."""
        logits = self.model.forward(tokens, last_only=True)
        return logits if self._vocabulary is None else logits[:, : self._vocabulary]

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor(tokens, device=self.model.spec.device)
