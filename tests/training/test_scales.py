"""What a drafter adds up is of like scale at the start, and training says where it is not."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftgauge.api.prompts import prompt_file
from draftgauge.core.prompts import mixed_prompts
from draftgauge.drafters.reuse import DESIGNS, INJECTIONS, ReuseNet, new_net, reuse_config
from draftgauge.drafters.reuse.config import NORMS
from draftgauge.drafters.reuse.unroll import unroll_states
from draftgauge.models.loading import load_model, load_tokenizer
from draftgauge.models.prompts_text import encode_prompts
from draftgauge.models.taps import TapPlan, batch_features
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.start import start_attention
from draftgauge.training.reuse.statistics import BALANCED, ScaleWatch, imbalances
from draftgauge.training.reuse.train import train_drafter
from tiny import save_tiny, tiny_model, tokens

RAW = dict.fromkeys(NORMS, False)
VARIANTS = [(design, "project-rope") for design in DESIGNS] + [("kv", injection) for injection in INJECTIONS[:2]]


def loud(target: PreTrainedModel) -> PreTrainedModel:
    """A target whose residual stream is far larger than its keys and values, as that of a trained one is."""
    with torch.no_grad():
        target.get_input_embeddings().weight.mul_(40)
    return target


def watched(net: ReuseNet, target: PreTrainedModel, text: Tensor) -> dict[str, dict[str, float]]:
    watch, plan = ScaleWatch(net), TapPlan(net.config.hidden_layers, net.config.kv_layers)
    with torch.no_grad(), watch.watching():
        unroll_states(net, text, batch_features(target, text, plan), 3)
    return watch.scales()


@pytest.fixture(scope="module")
def bundled() -> tuple[PreTrainedModel, Tensor]:
    """The bundled target, and some of its prompts that fill 256 tokens."""
    target, tokenizer = load_model("reference", device="cpu").module, load_tokenizer("reference")
    prompts = encode_prompts(mixed_prompts(prompt_file(None), 8), tokenizer, longest=256)
    text = torch.tensor([ids for _, ids in prompts if len(ids) == 256])
    assert len(text) >= 2
    return target, text[:6]


@pytest.mark.parametrize(("design", "injection"), VARIANTS)
def test_the_bundled_target_s_drafters_start_balanced(
    bundled: tuple[PreTrainedModel, Tensor], design: str, injection: str
) -> None:
    target, text = bundled
    net = new_net(reuse_config(target.config, design, injection=injection), target, 0)
    start_attention(net, target, "target", list(text))
    scales = watched(net, target, text[:4])
    assert "blocks.0.residual" in scales
    assert ("fuse" in scales) == DESIGNS[design].reads_hidden
    assert imbalances(scales) == []


def test_without_norms_the_stream_drowns_the_rest() -> None:
    target = loud(tiny_model(num_hidden_layers=4))
    text = tokens(24, 1).view(1, 24)
    raw = watched(new_net(reuse_config(target.config, "hidden", **RAW), target, 0), target, text)
    (worst,) = imbalances(raw)
    assert (worst.sum, worst.largest) == ("blocks.0.residual", "stream")
    assert worst.ratio > 4 * BALANCED
    assert imbalances(watched(new_net(reuse_config(target.config, "hidden"), target, 0), target, text)) == []


def test_training_warns_and_records(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "target", num_hidden_layers=4, eos_token_id=95)
    loud(model := tiny_model(num_hidden_layers=4, eos_token_id=95)).save_pretrained(folder)
    assert model.get_input_embeddings().weight.std() > 1
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps({"prompt": f"say {n}"}) for n in range(4)))
    spec = TrainingSpec(
        target=str(folder), reuse="hidden", prompts=tmp_path / "prompts.jsonl", new_tokens=12, length=48, depths=3,
        steps=2, batch=2, log_every=1, device="cpu", answers=tmp_path / "answers.jsonl",
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"stream is .* times .* where blocks.0.residual adds them.* \(norm_before_fc"):
        train_drafter(replace(spec, **RAW), tmp_path / "raw")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="at initialisation")
        train_drafter(spec, tmp_path / "normed")
    rows = [json.loads(line) for line in (tmp_path / "normed" / "log.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert all(row["rms/blocks.0.residual/stream"] > 0 for row in rows)
