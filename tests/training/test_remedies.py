"""Remedies against the bottlenecks: each changes what it says, for as long as it says, and nothing else."""

from __future__ import annotations

import pytest
import torch

from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse import ReuseNet
from draftgauge.drafters.reuse.unroll import unroll
from draftgauge.models.taps import TapPlan, batch_features
from draftgauge.training.reuse.prepare import check_remedies
from draftgauge.training.reuse.remedies import Remedies
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.statistics import GradientStatistics
from reuse_nets import VOCABULARY, net_for, target
from tiny import tokens

TEXT = tokens(24, 3, VOCABULARY)[None]


def backward(net: ReuseNet, remedies: Remedies, step: int) -> dict[str, float]:
    """Gradient norms by group after a step's backward pass."""
    features = batch_features(target().module, TEXT, TapPlan(net.config.hidden_layers, net.config.kv_layers))
    net.zero_grad()
    with remedies.holding(step):
        loss = sum(logits.logsumexp(-1).mean() for logits in unroll(net, TEXT, features, 3))
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    remedies.change_gradients(step)
    row = GradientStatistics(net).row()
    return {key.removeprefix("gradient_norm/"): value for key, value in row.items() if key.startswith("gradient_norm/")}


def test_gradients_of_own_keys_are_multiplied() -> None:
    net = net_for(target(), "kv").requires_grad_(True)
    plain = backward(net, Remedies(net, TrainingSpec(reuse="kv")), 0)
    scaled = backward(net, Remedies(net, TrainingSpec(reuse="kv", kv_gradient=50)), 0)
    for group, norm in plain.items():
        factor = 50 if group.endswith(("chain_attention.keys", "chain_attention.values")) else 1
        assert scaled[group] == pytest.approx(factor * norm, rel=1e-4), group


def test_a_gate_is_held_open_and_then_freed() -> None:
    net = net_for(target(), "hybrid").requires_grad_(True)
    remedies = Remedies(net, TrainingSpec(steps=10, gate_hold=0.3))
    for step in (0, 2):
        assert backward(net, remedies, step)["blocks.0.join.gate"] == 0
    assert backward(net, remedies, 3)["blocks.0.join.gate"] > 0


def test_the_cross_branch_is_trained_alone_and_then_all() -> None:
    net = net_for(target(), "hybrid").requires_grad_(True)
    remedies = Remedies(net, TrainingSpec(steps=10, cross_first=0.2))
    first, later = backward(net, remedies, 1), backward(net, remedies, 2)
    alone = {group for group, norm in first.items() if norm}
    assert alone == {group for group in later if "chain_attention" in group or "injection" in group or "join" in group}
    assert all(later.values())


def test_what_a_design_has_not_is_refused() -> None:
    with pytest.raises(DraftgaugeError, match="gate_hold is for the designs hybrid"):
        check_remedies(TrainingSpec(reuse="kv", gate_hold=0.2))
    with pytest.raises(DraftgaugeError, match="kv_gradient is for the designs"):
        check_remedies(TrainingSpec(reuse="hidden", kv_gradient=50))
    with pytest.raises(DraftgaugeError, match="share of the steps"):
        TrainingSpec(cross_first=1.0)
