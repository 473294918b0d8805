"""A model that is another one: the base of wrappers that watch a loop from inside, without the loop knowing."""

from __future__ import annotations

from torch import Tensor

from draftgauge.models.base import BranchSession, CachedModel


class WrappedModel:
    """:class:`~draftgauge.models.base.CachedModel` that hands everything on to another."""

    def __init__(self, model: CachedModel) -> None:
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
