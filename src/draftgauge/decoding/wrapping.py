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
    """Keeps the float32 logits behind every token of an output, ``[length, vocabulary]``, whichever loop decodes it."""

    def __init__(self, model: CachedModel, prompt_tokens: int) -> None:
        """Watch the decoding of a prompt of that many tokens."""
        super().__init__(model)
        self._first = prompt_tokens - 1  # the prompt's last token gives the first logits of the output
        self._kept: list[Tensor] = []  # [V] each

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and keep their logits, the prompt's aside."""
        output = self.length >= self._first
        logits = self.model.forward(tokens, last_only)
        if output:
            self._kept += logits.unbind()
        return logits

    def truncate(self, length: int) -> None:
        """Roll back, forgetting what was kept past it."""
        self.model.truncate(length)
        del self._kept[max(length - self._first, 0) :]

    def logits(self, tokens: int) -> Tensor:
        """``[tokens, V]`` logits that gave the first tokens of the output."""
        return torch.stack(self._kept[:tokens])


class EntropyTap(WrappedModel):
    """Keeps the entropy of the logits behind every token of one output, whichever loop decodes it."""

    def __init__(self, model: CachedModel, prompt_tokens: int) -> None:
        """Watch the decoding of a prompt of that many tokens."""
        super().__init__(model)
        self._first = prompt_tokens - 1  # the prompt's last token gives the first logits of the output
        self._pending: list[Tensor] = []  # [k, V] each, at most ENTROPY_CHUNK rows together
        self._known: list[Tensor] = []  # [k] bits each
        self._rows = 0

    def forward(self, tokens: Tensor, last_only: bool = False) -> Tensor:
        """Append tokens and note their logits, the prompt's aside."""
        output = self.length >= self._first
        logits = self.model.forward(tokens, last_only)
        if output:
            self._pending.append(logits)
            if sum(map(len, self._pending)) >= ENTROPY_CHUNK:
                self._settle()
        return logits

    def truncate(self, length: int) -> None:
        """Roll back, forgetting what was noted past it."""
        self.model.truncate(length)
        self._settle()
        noted = torch.cat(self._known) if self._known else torch.empty(0)
        self._known = [noted[: max(length - self._first, 0)]]

    def entropies(self, tokens: int) -> Tensor:
        """Bits ``[tokens]`` of the distributions that gave the first tokens of the output."""
        self._settle()
        return torch.cat(self._known)[:tokens]

    def _settle(self) -> None:
        if self._pending:
            self._known.append(entropy_bits(torch.cat(self._pending)))
            self._pending = []
