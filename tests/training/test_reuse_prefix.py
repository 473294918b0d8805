"""Anchors that are context only: what is left out of an unroll changes nothing of the rest, forwards or backwards."""

from __future__ import annotations

import pytest
import torch

from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import DESIGNS, reuse_config
from draftgauge.models.taps import TapPlan, batch_features
from tiny import tiny_model, tokens

DEPTHS, LENGTH = 3, 19
VARIANTS = [(design, 1, "project-rope") for design in DESIGNS] + [("kv", 2, "concat"), ("control", 3, "project-rope")]


@pytest.mark.parametrize("first", [1, 6, LENGTH - 2 - DEPTHS])
@pytest.mark.parametrize(("design", "layers", "injection"), VARIANTS)
def test_leaving_out_prompt_anchors_changes_nothing(design: str, layers: int, injection: str, first: int) -> None:
    target = tiny_model(num_hidden_layers=4)
    config = reuse_config(target.config, design, layers=layers, injection=injection, intermediate_size=32)
    texts = torch.stack([tokens(LENGTH, 1), tokens(LENGTH, 2)])
    features = batch_features(target, texts, TapPlan(config.hidden_layers, config.kv_layers))
    gradients = []
    for begin in (0, first):
        net = new_net(config, target, 3)
        states = [state[:, first - begin :] for state in net.unroll(texts, features, DEPTHS, begin)]
        losses = [(depth + 1) * net.logits(state).log_softmax(-1)[..., 5].sum() for depth, state in enumerate(states)]
        torch.stack(losses).sum().backward()
        found = {name: parameter.grad for name, parameter in net.named_parameters()}
        gradients.append(found | {"states": torch.stack(states).detach()})
    assert gradients[0].keys() == gradients[1].keys()
    for name, whole in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], whole, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
