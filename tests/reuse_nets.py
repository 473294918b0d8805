"""Untrained drafters of every design around one tiny target, for tests of what is measured of them."""

from __future__ import annotations

import torch

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.drafters.reuse import ReuseNet, new_net, reuse_config
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from tiny import tiny_model, tokens

VOCABULARY = 6
SETTINGS = DecodingSettings(max_new_tokens=24)
DESIGNS = ("hidden", "kv", "hybrid", "cross", "control")


def target(engine: str = "auto") -> CachedModel:
    """A target of a few tokens only: an untrained drafter agrees with it now and then."""
    return wrap(tiny_model("qwen3", num_hidden_layers=3, vocab_size=VOCABULARY), engine)


def net_for(model: CachedModel, design: str, seed: int = 1, **options: object) -> ReuseNet:
    """An untrained drafter."""
    config = reuse_config(model.module.config, design, target_fingerprint="tiny", **options)  # type: ignore[arg-type]
    draft_tokens = torch.arange(config.draft_vocabulary) if config.draft_vocabulary else None
    return new_net(config, model.module, seed, draft_tokens).eval()


def texts(model: CachedModel, count: int = 6, settings: DecodingSettings = SETTINGS) -> list[HeldOutText]:
    """Greedy outputs of random prompts of several lengths, one of them a single token."""
    lengths = [1, 2, 9, 5, 17, 30][:count]
    return greedy_texts(model, [("task", tokens(n, i, VOCABULARY).tolist()) for i, n in enumerate(lengths)], settings)
