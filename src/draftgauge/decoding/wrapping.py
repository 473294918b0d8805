"""A model that is another one: the base of wrappers that watch a loop from inside, without the loop knowing."""

from __future__ import annotations

import torch
from torch import Tensor

from draftgauge.models.base import BranchSession, CachedModel
from draftgauge.verification import entropy_bits

ENTROPY_CHUNK = 64  # rows of logits kept before their entropies are taken, together


class WrappedModel:
    """:class:`~draftgauge.models.base.CachedModel` that hands everything on to another."""

    def __init__(self, model: CachedModel) -> None:
        """Wrap a model; its cache stays the only one."""
        self.model = model
        self.spec = model.spec
        self.module = model.module

    @property
    def length(self) -> int:
        return self.model.length

    def reset(self) -> None:
        self.model.reset()

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        return self.model.forward(tokens, last_only)

    def truncate(self, length: int) -> None:
        self.model.truncate(length)

    def branches(self, starts: Tensor) -> BranchSession:
        return self.model.branches(starts)


class LogitsTap(WrappedModel):
    """Keeps the float32 logits behind every token of an output, as the plain loop decodes it."""

    def __init__(self, model: CachedModel, prompt_tokens: int) -> None:
        """Watch the decoding of a prompt of that many tokens."""
        super().__init__(model)
        self._first = prompt_tokens - 1  # the prompt's last token gives the first logits of the output
        self._kept: list[Tensor] = []  # [1, V] each

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and keep their logits, the prompt's aside."""
        output = self.length >= self._first
        logits = self.model.forward(tokens, last_only)
        if output:
            self._kept.append(logits)
        return logits

    def taken(self) -> Tensor:
        """``[N, V]`` the logits that gave the ``N`` tokens of the output."""
        return torch.cat(self._kept)


class EntropyTap(LogitsTap):
    """Keeps the entropies of those logits alone."""

    def __init__(self, model: CachedModel, prompt_tokens: int) -> None:
        super().__init__(model, prompt_tokens)
        self._known: list[Tensor] = []  # [k] bits each

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and note their logits, until there are enough to take their entropies together."""
        logits = super().forward(tokens, last_only)
        if len(self._kept) >= ENTROPY_CHUNK:
            self._settle()
        return logits

    def taken(self) -> Tensor:
        """``[N]`` bits of the distributions that gave the ``N`` tokens of the output."""
        if self._kept:
            self._settle()
        return torch.cat(self._known)

    def _settle(self) -> None:
        self._known.append(entropy_bits(torch.cat(self._kept)))
        self._kept = []
