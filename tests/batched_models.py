"""A target and a draft that batches run, tiny."""

from __future__ import annotations

from draftgauge.models.engines.static import StaticModel
from tiny import noisy, tiny_model


def static_pair() -> tuple[StaticModel, StaticModel]:
    """A target, and a draft that often agrees with it."""
    draft = noisy(tiny_model("llama", num_hidden_layers=2, seed=0), 0.15)
    return StaticModel(tiny_model("llama", seed=0)), StaticModel(draft)
