"""PARD (An et al. 2025, arXiv 2504.18583): a small language model that drafts a block in one pass, over mask tokens.

The pass takes in the committed tokens that are missing and ``n - 1`` masks. The last of those tokens and each mask
predict a token each; the masks are then rolled back. A place sees only what is before it, so the tokens of a draft
do not depend on its length.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.drafters.base import Drafting, LoadOptions, Source, register_drafter
from draftgauge.drafters.dense import (
    CHUNK,
    DenseDrafts,
    Growth,
    best,
    cut_after_end,
    grow_branches,
    note,
    take_in_prompt,
)
from draftgauge.drafters.formats.files import has_config, read_config
from draftgauge.drafters.formats.settings import Settings
from draftgauge.drafters.language_model import FollowsWithModel, LanguageModelSource
from draftgauge.models.base import CachedModel
from draftgauge.models.device import generator_on
from draftgauge.models.folder import is_drafter_checkpoint
from draftgauge.models.taps import Taps

MASKS = ("pard_token", "ptd_token_id")  # of AMD, and of later checkpoints


class PardDrafter(FollowsWithModel):
    """Drafts with a model that was trained to fill masks."""

    def __init__(self, model: CachedModel, mask: int, how: Drafting, vocabulary: int | None = None) -> None:
        """As a :class:`FollowsWithModel`, and the model's token of a mask."""
        super().__init__(model, *how, vocabulary)
        self._mask = mask

    def keeps_drafted(self) -> bool:
        return False

    def _drafting(self, limit: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        rows = iter(self._block(limit))
        return next(rows), lambda _: next(rows)

    def commit(self, accepted: int, tokens: list[int]) -> None:
        self._text += tokens

    @torch.inference_mode()
    def draft_everywhere(
        self, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
    ) -> DenseDrafts:
        """See :class:`~draftgauge.drafters.dense.DraftsEverywhere`; each row is a branch that takes in masks."""
        drafts, model, before = DenseDrafts.empty(len(output), gamma_max), self.model, len(prompt_tokens)
        limits = np.minimum(gamma_max, model.spec.context - before - np.arange(len(output)) + 1)
        rows = int((limits > 0).sum())
        text = take_in_prompt(model, prompt_tokens, output) if rows else torch.empty(0)
        for begin in range(0, rows, CHUNK):
            logits = model.forward(text[begin : min(begin + CHUNK, rows)])[:, :vocabulary]
            note(logits, logits.argmax(-1), drafts, np.arange(begin, begin + len(logits)), 0)
        branching = np.flatnonzero(limits > 1)
        grow_branches(model, before, branching, limits, drafts, Growth(best, vocabulary, self._mask))
        cut_after_end(drafts, self.end_tokens)
        return drafts

    def _block(self, count: int) -> tuple[Tensor, ...]:
        """The logits ``[1, V]`` of so many tokens after the text."""
        length = len(self._text)
        if self.model.length == length:  # the last token is processed: its logits come with the masks
            self.model.truncate(length - 1)
        tokens = self._readable(self._text[self.model.length :])
        masks = tokens.new_full((count - 1,), self._mask)
        logits = self._logits(torch.cat((tokens, masks)), last_only=False)[-count:]
        if count > 1:
            self.model.truncate(length)
        return logits.split(1)


@register_drafter
class PardSource(LanguageModelSource):
    """A draft model whose configuration names its mask."""

    name = "pard"
    takes = "a PARD model (a folder whose config.json has pard_token)"
    self_describing = True
    drafter_type = PardDrafter
    mask: int

    @classmethod
    def recognises(cls, drafter: str | Path) -> bool:
        config = read_config(drafter) if has_config(drafter) else {}
        return not is_drafter_checkpoint(config) and any(name in config for name in MASKS)

    @classmethod
    def resolve(cls, source: Source) -> Source:
        return super(LanguageModelSource, cls).resolve(source)  # a source that describes itself

    @classmethod
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        _mask_token(source)
        super().check(source, tokenizer, options)

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> PardSource:
        loaded = super().load(source, target, options)
        assert isinstance(loaded, PardSource)
        loaded.mask = _mask_token(source)
        return loaded

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> PardDrafter:  # type: ignore[override]
        own = how._replace(generator=generator_on(how.generator, self.model.spec.device))
        return PardDrafter(self.model, self.mask, own, target.spec.vocabulary)


def _mask_token(source: Source) -> int:
    assert source is not None
    config = read_config(source)
    reader = Settings(config, config, {}, str(source))
    return reader.mask_token(reader.integer("vocab_size"))
