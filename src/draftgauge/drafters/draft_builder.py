"""A draft grown token by token from a model's logits: what all drafters with a model of their own have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from draftgauge.core.signals import OF_DRAFTED_TOKENS, Reads, SignalName
from draftgauge.drafters.base import Draft, KeepDrafting
from draftgauge.policies.base import Signal
from draftgauge.verification import Sampling, draw, probabilities, read_signals


class DraftBuilder:
    """How drafts grow: which token is taken from a distribution, and where a draft ends.

    Attributes:
        end_tokens: a draft ends with any of these.
        sampling: how tokens are drafted. Sampled drafts carry their distributions.
    """

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
            device: of the logits.
            end_tokens: a draft ends with any of these.
            sampling: how tokens are drafted, greedily if None.
            generator: on that device; needed for sampled drafts.
            to_target: ``[V]`` the target's ids of the drafter's tokens, where it knows but some of them.
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
    ) -> Draft:
        """Draft up to ``limit`` tokens, at least one.

        Args:
            logits: ``[1, V]`` of the first token.
            advance: takes a drafted token ``[1]`` in and gives the logits ``[1, V]`` of the next.
            limit: at least 1.
            keep_drafting, reads: as of :meth:`~draftgauge.drafters.base.Drafter.propose`.
        """
        chosen: list[Tensor] = []
        rows: list[Tensor] = []
        shown: list[Signal] = []
        while True:
            chosen.append(self._choose(logits, rows))
            if keep_drafting is not None:
                shown.append(_signal(len(chosen), logits, chosen[-1], reads))
            if len(chosen) == limit:
                break
            if (self._reads_every_token or keep_drafting is not None) and int(chosen[-1]) in self.end_tokens:
                break
            if keep_drafting is not None and not keep_drafting(shown[-1]):
                break
            logits = advance(chosen[-1])
        tokens = self._until_end(torch.cat(chosen).tolist())
        return Draft(tokens, torch.cat(rows[: len(tokens)]) if rows else None, shown)

    def _choose(self, logits: Tensor, rows: list[Tensor]) -> Tensor:
        """The drafted token ``[1]``; the distribution it was drawn from is added to ``rows``."""
        if self.sampling.greedy:
            best = logits.argmax(-1)
            return best if self._to_target is None else self._to_target[best]
        distribution = probabilities(logits, self.sampling)
        if self._to_target is not None:
            everywhere = distribution.new_zeros(1, self._vocabulary)
            distribution = everywhere.index_copy_(1, self._to_target, distribution)
        rows.append(distribution)
        return draw(distribution, self._generator)

    def _until_end(self, tokens: list[int]) -> list[int]:
        for index, token in enumerate(tokens):
            if token in self.end_tokens:
                return tokens[: index + 1]
        return tokens


def _signal(depth: int, logits: Tensor, token: Tensor, reads: Reads) -> Signal:
    """What a policy that reads these signals sees of a drafted token."""
    return Signal(depth, *read_signals(logits, reads), int(token) if SignalName.TEXT in reads else -1)
