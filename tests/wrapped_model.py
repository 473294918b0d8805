from __future__ import annotations

from typing import Any

from draftgauge.models.base import CachedModel


class WrappedModel:
    """A model that is another one, for a loop to be watched from inside."""

    def __init__(self, model: CachedModel) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)
