"""A draft grown token by token from a model's logits, and an independent small language model as the drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor
from transformers import PreTrainedTokenizerBase

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import (
    Draft,
    Drafting,
    DraftSource,
    KeepDrafting,
    LoadOptions,
    Source,
    UnreadDraft,
    register_drafter,
)
from draftgauge.drafters.dense import Chances, DenseDrafts, draft_densely, draft_refused
from draftgauge.models.base import CachedModel
from draftgauge.models.device import draft_compression, generator_on, upload
from draftgauge.models.engines.gguf_library import check_gguf_vocabulary
from draftgauge.models.folder import REFERENCE, fingerprint, is_gguf, model_folder
from draftgauge.models.loading import engines_of, load_model, load_tokenizer, made_by_others
from draftgauge.models.taps import Taps
from draftgauge.models.tokenizer import check_same_vocabulary
from draftgauge.policies.base import Signal
from draftgauge.verification import Sampling, best_tokens, check_finite, draw, probabilities, read_signals


class DraftBuilder:
    """How drafts grow: which token is taken from a distribution, and where a draft ends."""

    def __init__(
        self,
        device: torch.device,
        end_tokens: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
        generator: Generator | None = None,
        to_target: Tensor | None = None,
        vocabulary: int = 0,
    ) -> None:
        """Set the rules.

        Args:
            generator: on ``device``; needed for sampled drafts.
            to_target: ``[V]`` the target's ids of the drafter's tokens, for a drafter with a vocabulary of its own.
            vocabulary: number of logits of the target; needed with ``to_target``.
        """
        self.end_tokens = end_tokens
        self.sampling = sampling or Sampling()
        self._generator = generator
        self._to_target = to_target
        self._vocabulary = vocabulary
        # On the CPU reading a token is free; elsewhere it waits for the device, so end tokens are cut off afterwards.
        self._reads_every_token = device.type == "cpu"

    def build(
        self,
        logits: Tensor,
        advance: Callable[[Tensor], Tensor],
        limit: int,
        keep_drafting: KeepDrafting | None,
        reads: Reads = OF_DRAFTED_TOKENS,
        confidence_at: Callable[[int], float] | None = None,
    ) -> Draft:
        """Draft up to ``limit`` tokens, at least one; ``keep_drafting`` and ``reads`` are as of
        :meth:`Drafter.propose`.

        Args:
            logits: ``[1, V]`` of the first token.
            advance: processes a drafted token ``[1]`` and returns the logits ``[1, V]`` of the next.
            confidence_at: the drafter's own estimate for the token at a depth, from 0; by default its probability.
        """
        if keep_drafting is None and not self._reads_every_token:
            unread = self.build_unread(logits, advance, limit)
            rows, kept_tokens = unread.probabilities, until_end(unread.tokens.tolist(), self.end_tokens)
            return Draft(kept_tokens, None if rows is None else rows[: len(kept_tokens)])
        tokens: list[int] = []
        kept: list[Tensor] = []
        shown: list[Signal] = []
        reads_text = SignalName.TEXT in reads
        while True:
            token, row = self._choose(logits)
            if row is not None:
                kept.append(row)
            if keep_drafting is None:
                number = int(token)
                tokens.append(number)
            else:
                ((confidence, entropy, margin, number),) = read_signals(logits, token, reads)
                if confidence_at is not None:
                    confidence = confidence_at(len(tokens))
                tokens.append(number)
                shown.append(Signal(len(tokens), confidence, entropy, margin, number if reads_text else -1))
            check_finite((number,), "draft model")
            if len(tokens) == limit or number in self.end_tokens:
                break
            if keep_drafting is not None and not keep_drafting(shown[-1]):
                break
            logits = advance(token)
        return Draft(tokens, torch.cat(kept) if kept else None, shown)

    def build_unread(self, logits: Tensor, advance: Callable[[Tensor], Tensor], limit: int) -> UnreadDraft:
        """Draft ``limit`` tokens without reading any; end tokens do not end the draft."""
        chosen = [self._choose(logits, checked=False)]
        while len(chosen) < limit:
            chosen.append(self._choose(advance(chosen[-1][0]), checked=False))
        kept = [row for _, row in chosen if row is not None]
        return UnreadDraft(torch.cat([token for token, _ in chosen]), torch.cat(kept) if kept else None)

    def _choose(self, logits: Tensor, checked: bool = True) -> tuple[Tensor, Tensor | None]:
        """The drafted token ``[1]``, and the distribution ``[1, V]`` that it was drawn from, if it was drawn."""
        if self.sampling.greedy:
            best = best_tokens(logits) if checked else logits.argmax(-1)
            return (best if self._to_target is None else torch.where(best < 0, best, self._to_target[best])), None
        distribution = probabilities(logits, self.sampling)
        if self._to_target is not None:
            everywhere = distribution.new_zeros(1, self._vocabulary)
            distribution = everywhere.index_copy_(1, self._to_target, distribution)
        drawn = draw(distribution, self._generator)
        return (drawn if checked else drawn.clamp_min(0)), distribution


def until_end(tokens: list[int], end_tokens: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in end_tokens:
            return tokens[: index + 1]
    return tokens


class FollowsWithModel(ABC):
    """A smaller model that shares the target's tokenizer, whose cache follows the committed text.

    The next ``propose`` first processes the committed tokens that are missing. Once the text is longer than the draft
    model's own context, drafts are empty.
    """

    def __init__(
        self,
        model: CachedModel,
        end_tokens: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
        generator: Generator | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """The model's cache belongs to the drafter from here on.

        Logits beyond the target's ``vocabulary`` (padding) are ignored; a token id beyond the draft model's own
        vocabulary is replaced by its last one. The other arguments are those of :class:`DraftBuilder`.
        """
        self.model = model
        self.end_tokens = end_tokens
        self.sampling = sampling or Sampling()
        self._builder = DraftBuilder(model.spec.device, end_tokens, sampling, generator)
        own = model.spec.vocabulary
        self._vocabulary = vocabulary if vocabulary is not None and vocabulary < own else None
        self._last = own - 1 if vocabulary is not None and vocabulary > own else None
        self._text: list[int] = []

    def backlog(self) -> int:
        return len(self._text) - self.model.length

    def prefill(self, context: list[int]) -> None:
        self.model.reset()
        self._text = list(context)
        if 1 < len(context) <= self.model.spec.context:
            self.model.forward(self._readable(context[:-1]), last_only=True)

    def _within_context(self, limit: int) -> int:
        return min(limit, self.model.spec.context - len(self._text) + 1)

    def _readable(self, tokens: list[int]) -> Tensor:
        uploaded = upload(tokens, self.model.spec.device)
        return uploaded if self._last is None else uploaded.clamp_(max=self._last)

    def propose(self, limit: int, keep_drafting: KeepDrafting | None, reads: Reads = OF_DRAFTED_TOKENS) -> Draft:
        limit = self._within_context(limit)
        return self._builder.build(*self._drafting(limit), limit, keep_drafting, reads) if limit > 0 else Draft([])

    def propose_unread(self, limit: int) -> UnreadDraft | None:
        limit = self._within_context(limit)
        readable = limit > 0 and self.model.spec.keeps_on_device
        return self._builder.build_unread(*self._drafting(limit), limit) if readable else None

    @abstractmethod
    def _drafting(self, limit: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Logits ``[1, vocabulary]`` of the first drafted token, and what gives those after a drafted one."""

    def _logits(self, tokens: Tensor, last_only: bool = True) -> Tensor:
        logits = self.model.forward(tokens, last_only=last_only)
        return logits if self._vocabulary is None else logits[:, : self._vocabulary]


class LanguageModelDrafter(FollowsWithModel):
    """Drafts token by token; ``commit`` rolls the cache back to the accepted tokens."""

    def keeps_drafted(self) -> bool:
        return True

    def _drafting(self, limit: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return self._logits(self._readable(self._text[self.model.length :])), self._logits

    def commit(self, accepted: int, tokens: list[int]) -> None:
        agreed = len(self._text) + accepted
        if self.model.length > agreed:
            self.model.truncate(agreed)
        self._text += tokens

    def draft_everywhere(
        self, prompt_tokens: list[int], output: list[int], gamma_max: int, vocabulary: int
    ) -> DenseDrafts:
        return draft_densely(self.model, prompt_tokens, output, gamma_max, self.end_tokens, vocabulary)

    def draft_refused(
        self,
        prompt_tokens: list[int],
        output: list[int],
        target_logits: Tensor,
        sampling: Sampling,
        gamma_max: int,
        generator: Generator,
    ) -> tuple[DenseDrafts, Chances, Chances]:
        device = self.model.spec.device
        how = Drafting(self.end_tokens, self.sampling, generator_on(generator, device))
        return draft_refused(self.model, how, prompt_tokens, output, target_logits.to(device), sampling, gamma_max)


@register_drafter
class LanguageModelSource(DraftSource):
    """A draft model; all drafters made from it share its cache, so only one may be in use."""

    name = "language_model"
    takes = "a draft model (a folder, or an id of the hub)"
    drafter_type: ClassVar[type[FollowsWithModel]] = LanguageModelDrafter
    model: CachedModel

    def __init__(self, source: Source, model: CachedModel) -> None:
        self.source = source
        self.model = model
        self.family, self.engine, self.context = model.spec.family, model.spec.engine, model.spec.context

    @classmethod
    def resolve(cls, source: Source) -> Source:
        if source in (None, REFERENCE):
            return f"{REFERENCE}/draft"
        if source is not None and not is_gguf(source):
            model_folder(source)  # which refuses what can be no model
        return source

    @classmethod
    def check(cls, source: Source, tokenizer: PreTrainedTokenizerBase, options: LoadOptions) -> None:
        assert source is not None
        if is_gguf(source):
            check_gguf_vocabulary(tokenizer, Path(source), "draft")
            return
        check_same_vocabulary(tokenizer, load_tokenizer(source, options.trust_remote_code, role="draft"))

    @classmethod
    def load(cls, source: Source, target: CachedModel, options: LoadOptions) -> LanguageModelSource:
        assert source is not None
        file = made_by_others(source)  # of it the target's compression, device and engine say nothing
        held = draft_compression("" if file else options.compression)
        device = options.device or ("cpu" if file else target.spec.device)
        engine = options.engine if options.engine in engines_of(source) else "auto"
        return cls(source, load_model(source, held, device, engine, options.trust_remote_code))

    def drafter(self, target: CachedModel, taps: Taps | None, how: Drafting) -> LanguageModelDrafter:
        own = generator_on(how.generator, self.model.spec.device)
        return LanguageModelDrafter(self.model, how.end_tokens, how.sampling, own, target.spec.vocabulary)

    def fingerprint(self) -> str:
        assert self.source is not None
        return fingerprint(self.source)
