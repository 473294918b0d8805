"""From taps to commit: a drafter that has learnt a few texts by heart drafts them live, and nearly every draft is
accepted whole.
"""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.live import ReuseDrafter
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, attach_taps, batch_features
from draftgauge.policies.fixed import FixedLength
from tiny import tiny_model, tokens

PROMPT, OUTPUT, DEPTHS = 8, 32, 4
PROMPTS = [tokens(PROMPT, seed=seed).tolist() for seed in range(4)]


@functools.cache
def target_and_texts() -> tuple[CachedModel, tuple[tuple[int, ...], ...]]:
    target = wrap(tiny_model(num_hidden_layers=4))
    return target, tuple(
        tuple(prompt + plain_decode(target, prompt, DecodingSettings(OUTPUT)).tokens) for prompt in PROMPTS
    )


def learn_by_heart(net: ReuseNet, plan: TapPlan) -> None:
    """Plain Adam on the unrolled cross-entropy of the texts' own tokens, until it is small at every depth."""
    target, texts = target_and_texts()
    batch = torch.tensor([text + (0,) * (DEPTHS + 1) for text in texts])
    features = batch_features(target.module, batch, plan)
    length = PROMPT + OUTPUT
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(200):
        loss = torch.zeros(())
        for depth, logits in enumerate(unroll(net, batch, features, DEPTHS)):
            first = PROMPT - 2  # the first anchor that is met live
            scores, labels = logits[:, first : length - 2 - depth], batch[:, first + 2 + depth : length]
            loss = loss + F.cross_entropy(scores.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02 * DEPTHS:
            return
    pytest.fail(f"not learnt: cross-entropy {loss.item():.2f}")


@pytest.mark.parametrize(("design", "layers"), [("hidden", 1), ("kv", 1), ("kv", 2), ("hybrid", 1), ("cross", 1)])
def test_what_was_learnt_by_heart_is_accepted_whole(design: str, layers: int) -> None:
    target, texts = target_and_texts()
    assert len({token for text in texts for token in text[PROMPT:]}) > 20  # texts worth learning
    config = reuse_config(target.module.config, design, layers=layers)
    plan = TapPlan(config.hidden_layers, config.kv_layers)
    net = new_net(config, target.module, seed=0)
    learn_by_heart(net, plan)
    drafter = ReuseDrafter(net, target, attach_taps(target, plan))
    drafted = accepted = whole = steps = 0
    for text in texts:
        result = speculative_decode(target, drafter, FixedLength(DEPTHS), list(text[:PROMPT]), DecodingSettings(OUTPUT))
        assert tuple(result.tokens) == text[PROMPT:]
        drafted += sum(step.drafted for step in result.steps)
        accepted += sum(step.accepted for step in result.steps)
        whole += sum(step.drafted == step.accepted for step in result.steps)
        steps += len(result.steps)
    assert accepted > 0.95 * drafted
    assert whole > 0.9 * steps
