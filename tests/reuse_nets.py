"""Untrained drafters of every design around one tiny target, for tests of what is measured of them and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.decoding.settings import DecodingSettings
from draftgauge.diagnostics.texts import HeldOutText, greedy_texts
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import save_drafter, target_fingerprint
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import Features
from tiny import tiny_model, tokens

VOCABULARY = 6
SETTINGS = DecodingSettings(max_new_tokens=16)
DESIGNS = ("hidden", "kv", "hybrid", "cross", "control")


def target(engine: str = "auto") -> CachedModel:
    """A target of a few tokens only: an untrained drafter agrees with it now and then."""
    return wrap(tiny_model("qwen3", num_hidden_layers=3, vocab_size=VOCABULARY), engine)


def net_for(model: CachedModel, design: str, seed: int = 1, **options: object) -> ReuseNet:
    """An untrained drafter."""
    config = reuse_config(model.module.config, design, target_fingerprint="tiny", **options)  # type: ignore[arg-type]
    draft_tokens = torch.arange(config.draft_vocabulary) if config.draft_vocabulary else None
    return new_net(config, model.module, seed, draft_tokens).eval()


def saved_drafter(
    folder: Path, module: PreTrainedModel, design: str = "hidden", draft_tokens: Tensor | None = None, **options: Any
) -> ReuseNet:
    """One as training writes it; its norms are away from one, which would hide a norm of the wrong name."""
    options = {"intermediate_size": 96, "target_source": "some/target"} | options
    seed, kept = options.pop("seed", 5), 0 if draft_tokens is None else len(draft_tokens)
    options |= {"draft_vocabulary": kept, "target_fingerprint": target_fingerprint(module)}
    net = new_net(reuse_config(module.config, design, **options), module, seed, draft_tokens)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    save_drafter(folder, net, {"request": {"depths": 4}})
    return net.eval().requires_grad_(False)


def texts(model: CachedModel, count: int = 6, settings: DecodingSettings = SETTINGS) -> list[HeldOutText]:
    """Greedy outputs of random prompts of several lengths, one of them a single token."""
    lengths = [1, 2, 9, 5, 17, 30][:count]
    return greedy_texts(model, [("task", tokens(n, i, VOCABULARY).tolist()) for i, n in enumerate(lengths)], settings)


def unroll(net: ReuseNet, tokens: Tensor, features: Features, depths: int) -> list[Tensor]:
    """Logits ``[B, A, V]`` of every depth from every anchor."""
    anchors = tokens.shape[1] - 1 - depths
    states = net.unroll(tokens, features, depths)
    return [net.logits(state, tokens[:, depth + 1 : depth + 1 + anchors]) for depth, state in enumerate(states)]
