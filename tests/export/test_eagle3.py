"""An exported drafter is an EAGLE-3 head: the engines' names and shapes, and the same logits from the same states."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from command_line import refusal, succeeds
from draftgauge.api.export import export
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.drafters.reuse import (
    DESIGNS,
    ReuseNet,
    drafting,
    new_net,
    reuse_config,
    save_drafter,
    target_fingerprint,
)
from draftgauge.drafters.reuse.config import NORMS
from draftgauge.models.reference import reference_path
from draftgauge.models.taps import TapPlan, batch_features
from tiny import tiny_model, tokens

DEPTHS = 4
KEPT = torch.tensor([1, 4, 7, 30])
LAYER_NAMES = {
    "midlayer.input_layernorm.weight": (64,),
    "midlayer.hidden_norm.weight": (64,),
    "midlayer.self_attn.q_proj.weight": (64, 128),
    "midlayer.self_attn.k_proj.weight": (32, 128),
    "midlayer.self_attn.v_proj.weight": (32, 128),
    "midlayer.self_attn.o_proj.weight": (64, 64),
    "midlayer.post_attention_layernorm.weight": (64,),
    "midlayer.mlp.gate_proj.weight": (96, 64),
    "midlayer.mlp.up_proj.weight": (96, 64),
    "midlayer.mlp.down_proj.weight": (64, 96),
    "fc.weight": (64, 192),
    "norm.weight": (64,),
}


@dataclass
class Reference:
    """The EAGLE-3 head as the engines compute it, from a checkpoint alone; one text, one chain, keys kept in lists."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    embedding: Tensor

    def __post_init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def norm(self, name: str, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return scaled * self.weights[f"{name}.weight"]

    def project(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def fuse(self, taps: Tensor) -> Tensor:
        """The states ``[S, H]`` of one position as one ``[H]``."""
        if self.config["fc_norm"]:
            taps = torch.stack([self.norm(f"fc_norm.{index}", tap) for index, tap in enumerate(taps)])
        return self.project("fc", taps.flatten())

    def rotated(self, heads: Tensor, position: int) -> Tensor:
        size = heads.shape[-1]
        angles = position / self.config["rope_theta"] ** (torch.arange(0, size, 2) / size)
        cos, sin = angles.cos().repeat(2), angles.sin().repeat(2)
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat((-second, first), -1) * sin

    def attend(self, x: Tensor, position: int) -> Tensor:
        heads, groups = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k, v = (self.project(f"midlayer.self_attn.{name}_proj", x) for name in "qkv")
        q, k = (self.rotated(part.unflatten(0, (-1, self.config["head_dim"])), position) for part in (q, k))
        self.keys.append(k)
        self.values.append(v.unflatten(0, (groups, -1)))
        keys, values = (torch.stack(kept, 1).repeat_interleave(heads // groups, 0) for kept in (self.keys, self.values))
        weights = (torch.einsum("hd,hnd->hn", q, keys) / self.config["head_dim"] ** 0.5).softmax(-1)
        return self.project("midlayer.self_attn.o_proj", torch.einsum("hn,hnd->hd", weights, values).flatten())

    def step(self, token: int, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Logits after a token, and the state that enters the next step."""
        normed = self.norm("midlayer.hidden_norm", state)
        residual = normed if self.config["norm_before_residual"] else state
        read = torch.cat((self.norm("midlayer.input_layernorm", self.embedding[token]), normed))
        residual = residual + self.attend(read, position)
        x = self.norm("midlayer.post_attention_layernorm", residual)
        gate, up = (self.project(f"midlayer.mlp.{name}_proj", x) for name in ("gate", "up"))
        residual = residual + self.project("midlayer.mlp.down_proj", F.silu(gate) * up)
        output = self.norm("norm", residual)
        return self.project("lm_head", output), output if self.config["norm_output"] else residual


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_model(num_hidden_layers=4)


def saved(
    folder: Path, target: PreTrainedModel, design: str = "hidden", draft_tokens: Tensor | None = None, **options: Any
) -> ReuseNet:
    config = reuse_config(
        target.config,
        design,
        intermediate_size=96,
        draft_vocabulary=0 if draft_tokens is None else len(draft_tokens),
        target_fingerprint=target_fingerprint(target),
        **({"target_source": "some/target"} | options),
    )
    net = new_net(config, target, 5, draft_tokens)
    with torch.no_grad():  # norms start at one, which would hide a norm of the wrong name
        for name, parameter in net.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    save_drafter(folder, net, {"request": {"depths": DEPTHS}})
    return net.eval()


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("draft_tokens", [None, KEPT], ids=["whole", "draft vocabulary"])
@pytest.mark.parametrize("norms", [(), *((name,) for name in NORMS), NORMS], ids=" ".join)
def test_the_same_logits_from_the_same_states(
    tmp_path: Path, target: PreTrainedModel, norms: tuple[str, ...], draft_tokens: Tensor | None
) -> None:
    net = saved(tmp_path / "drafter", target, "hidden", draft_tokens, **{name: name in norms for name in NORMS})
    (row,) = export(tmp_path / "drafter", out=tmp_path / "eagle3")
    config, weights = read(tmp_path / "eagle3")
    assert row["depths"] == DEPTHS
    assert row["parameters"] == sum(parameter.numel() for parameter in net.parameters())

    text = tokens(9)
    seen = batch_features(target, text[None], TapPlan(net.config.hidden_layers, ()))
    anchors = len(text) - 1  # the last token is the first that the drafter takes in without a state behind it
    ours, chain = drafting.take_in(net, drafting.begin(net), text[1:], seen.hidden[0, :anchors])
    reference = Reference(config, weights, target.get_input_embeddings().weight.detach())
    for position in range(anchors):  # as an engine's drafter prefills: every token with the state of the one before
        theirs, state = reference.step(int(text[position + 1]), reference.fuse(seen.hidden[0, position]), position)
    token = 5
    for depth in range(DEPTHS):
        torch.testing.assert_close(theirs, ours, atol=2e-4, rtol=2e-4)
        ours, chain = drafting.step(net, chain, token)
        theirs, state = reference.step(token, state, anchors + depth)
        token += 3

    logits = len(KEPT) if draft_tokens is not None else 96
    shapes = LAYER_NAMES | {"lm_head.weight": (logits, 64)}
    shapes |= {f"fc_norm.{tap}.weight": (64,) for tap in range(3 if "norm_before_fc" in norms else 0)}
    shapes |= {"d2t": (logits,), "t2d": (96,)} if draft_tokens is not None else {}
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == shapes
    if draft_tokens is not None:
        assert torch.equal(weights["d2t"] + torch.arange(logits), draft_tokens)
        assert weights["t2d"].nonzero().flatten().tolist() == draft_tokens.tolist()


def test_layers_are_in_the_order_in_which_engines_hand_them_over(tmp_path: Path, target: PreTrainedModel) -> None:
    """From the first to the last, however a drafter was told to tap them."""
    net = saved(tmp_path / "drafter", target, taps=(2, 0), norm_before_residual=False)
    export(tmp_path / "drafter", out=tmp_path / "eagle3")
    config, weights = read(tmp_path / "eagle3")
    text = tokens(9)
    handed_over = batch_features(target, text[None], TapPlan((0, 2), ())).hidden[0]
    tapped = batch_features(target, text[None], TapPlan((2, 0), ())).hidden
    reference = Reference(config, weights, target.get_input_embeddings().weight.detach())
    fused = torch.stack([reference.fuse(taps) for taps in handed_over])
    torch.testing.assert_close(fused, net.fuse_hidden(tapped)[0].detach(), atol=1e-4, rtol=1e-4)
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3]
    assert config["eagle_config"] == {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 2]}
    assert config["num_aux_hidden_states"] == 2
    assert (config["fc_norm"], config["norm_before_fc"]) == (True, False)
    assert (config["norm_before_residual"], config["norm_output"]) == (False, True)
    assert (config["vocab_size"], config["draft_vocab_size"]) == (96, 96)
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == net.config.rope["rope_theta"]
    origin = json.loads((tmp_path / "eagle3" / "draftgauge.json").read_text())
    assert (origin["target"], origin["target_fingerprint"]) == ("some/target", target_fingerprint(target))


@pytest.mark.parametrize("design", sorted(set(DESIGNS) - {"hidden"}))
def test_other_designs_are_refused(tmp_path: Path, target: PreTrainedModel, design: str) -> None:
    saved(tmp_path / "drafter", target, design)
    with pytest.raises(DraftgaugeError, match=f"the {design} design has no EAGLE-3 layout.*--reuse hidden"):
        export(tmp_path / "drafter", out=tmp_path / "eagle3")
    assert not (tmp_path / "eagle3").exists()


def test_drafters_and_folders_that_cannot_be_used_are_refused(tmp_path: Path, target: PreTrainedModel) -> None:
    with pytest.raises(ModelError, match="holds no trained drafter"):
        export(tmp_path / "nothing", out=tmp_path / "eagle3")
    saved(tmp_path / "drafter", target)
    with pytest.raises(DraftgaugeError, match="the drafter itself"):
        export(tmp_path / "drafter", out=tmp_path / "drafter")
    (tmp_path / "drafter" / "drafter.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="not the one that"):
        export(tmp_path / "drafter", out=tmp_path / "eagle3")
    saved(tmp_path / "gemma", tiny_model("gemma", num_hidden_layers=4))
    with pytest.raises(DraftgaugeError, match="the family gemma scales its token embeddings"):
        export(tmp_path / "gemma", out=tmp_path / "eagle3")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(DraftgaugeError, match="holds files that no export left"):
        export(tmp_path / "drafter", out=tmp_path / "model")
    assert (tmp_path / "model" / "config.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({}, ("a norm for each tapped layer", "states normalised from depth to depth (train with --llama-cpp)")),
        ({"norm_before_fc": False}, ("states normalised from depth to depth",)),
        ({"norm_before_fc": False, "norm_output": False, "taps": (0, 2)}, ("2 tapped layers",)),
        ({"norm_before_fc": False, "norm_output": False}, ()),
        ({"norm_before_fc": False, "norm_output": False, "norm_before_residual": False}, ()),
    ],
)
def test_the_command_says_whether_llama_cpp_can_run_it(
    tmp_path: Path, target: PreTrainedModel, options: dict[str, Any], lacks: tuple[str, ...]
) -> None:
    saved(tmp_path / "drafter", target, **options)
    result = succeeds("export", str(tmp_path / "drafter"), "--out", str(tmp_path / "out"))
    assert all(word in result.stdout for word in lacks)
    assert ("llama.cpp cannot run it" in result.stdout) == bool(lacks)
    assert ("--spec-type draft-eagle3" in result.stdout) == (not lacks)


def test_the_command_prints_how_engines_load_it(tmp_path: Path, target: PreTrainedModel) -> None:
    saved(tmp_path / "drafter", target, target_source="reference")  # engines do not know what that is
    result = succeeds("export", str(tmp_path / "drafter"), "--format", "eagle3", "--out", str(tmp_path / "out"))
    assert f"vLLM: vllm serve {reference_path('target')} " in result.stdout
    assert f'"model": "{tmp_path / "out"}", "num_speculative_tokens": {DEPTHS}' in result.stdout
    assert "--speculative-algorithm EAGLE3" in result.stdout
    assert "eagle3" in refusal("export", str(tmp_path / "drafter"), "--format", "onnx", "--out", str(tmp_path / "out"))


@pytest.mark.parametrize("at", range(1, 7))
def test_a_killed_export_does_not_keep_the_next_one_out(
    at: int, tmp_path: Path, target: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each of its writes to disk, it leaves no configuration, so that no engine loads a part."""
    saved(tmp_path / "drafter", target)
    out, synced = tmp_path / "out", 0
    (out).mkdir()
    (out / ".model.safetensors.123.draftgauge-tmp").write_bytes(b"of another export, killed before it wrote more")

    def killed(path: Path) -> None:
        nonlocal synced
        synced += 1
        if synced == at:
            raise KeyboardInterrupt

    monkeypatch.setattr("draftgauge.core.files.sync", killed)
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path / "drafter", out=out)
    monkeypatch.undo()
    assert (out / "config.json").exists() == (at == 6)
    export(tmp_path / "drafter", out=out)
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "draftgauge.json", "model.safetensors"]
