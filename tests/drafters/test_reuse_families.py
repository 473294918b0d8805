"""Drafters that read their target on families with norms, rotary embeddings and layers of other kinds than Llama's."""

from __future__ import annotations

import pytest
import torch

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.base import Drafting
from draftgauge.drafters.reuse.building import new_net, start_norm
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.live import new_drafter
from draftgauge.models.loading import wrap
from draftgauge.models.taps import attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from reuse_nets import unroll
from tiny import tokens
from tiny_families import tiny_family

HIDDEN = "deepseek_v3 llama4_text gpt2 falcon nemotron mimo_v2_flash qwen2_5_vl"
KEYS = "gpt_oss glm4 glm4_moe cohere2 starcoder2 stablelm gemma4_text phi3 smollm3 ernie4_5"


@pytest.mark.parametrize(
    ("kind", "design"), [*((kind, "hidden") for kind in HIDDEN.split()), *((kind, "hybrid") for kind in KEYS.split())]
)
def test_a_drafter_is_taught_and_drafts_losslessly(kind: str, design: str) -> None:
    module, text = tiny_family(kind), tokens(20, seed=4)
    net = new_net(reuse_config(module.config, design, intermediate_size=96), module, seed=3)
    start_norm(net, module)
    assert net.norm.weight.isfinite().all()
    logits = unroll(net, text[None], batch_features(module, text[None], net.config.tap_plan), depths=2)
    sum(depth.square().mean() for depth in logits).backward()
    assert all(weight.grad.isfinite().all() for weight in net.parameters() if weight.grad is not None)
    target, settings = wrap(module), DecodingSettings(8)
    drafter = new_drafter(net.eval(), target, attach_taps(target, net.config.tap_plan), Drafting(settings.end_tokens))
    output = speculative_decode(target, drafter, FixedLength(3), text.tolist(), settings)
    assert output.tokens == plain_decode(target, text.tolist(), settings).tokens
    assert torch.stack(logits).isfinite().all()
