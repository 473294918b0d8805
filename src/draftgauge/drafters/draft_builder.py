"""A draft grown token by token from a model's logits: what all drafters with a model of their own have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, KeepDrafting, UnreadDraft
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
