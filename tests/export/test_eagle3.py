"""Exported drafters are EAGLE-3 heads and DFlash drafters: the engines' names, and the same logits read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from command_line import refusal, succeeds
from draftgauge.api.export import export
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.formats.building import build_net, read_layout
from draftgauge.drafters.formats.files import read_config
from draftgauge.drafters.reuse import drafting
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import DESIGNS, NORMS, reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.persistence import read_config as read_own_config
from draftgauge.drafters.reuse.persistence import save_drafter, target_fingerprint
from draftgauge.models.folder import reference_path
from draftgauge.models.loading import wrap
from draftgauge.models.taps import TapPlan, batch_features
from draftgauge.pair.loading import load_pair
from draftgauge.policies.fixed import FixedLength
from reuse_nets import saved_drafter
from tiny import save_tiny, tiny_model, tokens

DEPTHS = 4
KEPT = torch.tensor([1, 4, 7, 30])
LAYER_NAMES = {"midlayer.input_layernorm.weight": (64,), "midlayer.hidden_norm.weight": (64,)}
LAYER_NAMES |= {"midlayer.self_attn.q_proj.weight": (64, 128), "midlayer.self_attn.k_proj.weight": (32, 128)}
LAYER_NAMES |= {"midlayer.self_attn.v_proj.weight": (32, 128), "midlayer.self_attn.o_proj.weight": (64, 64)}
LAYER_NAMES |= {"midlayer.post_attention_layernorm.weight": (64,), "midlayer.mlp.gate_proj.weight": (96, 64)}
LAYER_NAMES |= {"midlayer.mlp.up_proj.weight": (96, 64), "midlayer.mlp.down_proj.weight": (64, 96)}
LAYER_NAMES |= {"fc.weight": (64, 192), "norm.weight": (64,)}


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_model(num_hidden_layers=4)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")


def assert_same_drafts(net: ReuseNet, folder: Path, target: PreTrainedModel) -> None:
    """Logits of a drafter, and of its export in the hands of the reader of published checkpoints."""
    published = build_net(folder, read_layout(read_config(folder), str(folder)), wrap(target))
    text = tokens(9)
    anchors = len(text) - 1  # the last token is the first that the drafter takes in without a state behind it
    own, theirs = (
        batch_features(target, text[None], plan).hidden[0, :anchors]
        for plan in (net.config.tap_plan, TapPlan(published.layout.taps))
    )
    anchored = drafting.begin(net)
    logits, chain = drafting.take_in(net, anchored, text[1:], own)
    cache = published.begin()
    branches = published.branches(cache, anchors - 1, published.take_in(cache, text[1:], theirs)[-1:])
    for depth in range(DEPTHS):
        torch.testing.assert_close(branches.logits, logits, atol=2e-4, rtol=2e-4)
        token = torch.tensor([5 + 3 * depth])
        logits, chain = drafting.step(net, anchored, chain, token)
        branches.advance(token)


@pytest.mark.parametrize("draft_tokens", [None, KEPT], ids=["whole", "draft vocabulary"])
@pytest.mark.parametrize("norms", [(), *((name,) for name in NORMS), NORMS], ids=" ".join)
def test_the_same_logits_from_the_same_states(
    tmp_path: Path, target: PreTrainedModel, norms: tuple[str, ...], draft_tokens: Tensor | None
) -> None:
    options = {name: name in norms for name in NORMS} | {"taps": (0, 1, 2)}
    net = saved_drafter(tmp_path / "drafter", target, "hidden", draft_tokens, **options)
    (row,) = export(tmp_path / "drafter", out=tmp_path / "eagle3")
    _, weights = read(tmp_path / "eagle3")
    assert row["depths"] == DEPTHS
    assert row["parameters"] == sum(parameter.numel() for parameter in net.parameters())

    assert_same_drafts(net, tmp_path / "eagle3", target)
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
    net = saved_drafter(tmp_path / "drafter", target, taps=(2, 0), norm_before_residual=False)
    export(tmp_path / "drafter", out=tmp_path / "eagle3")
    assert_same_drafts(net, tmp_path / "eagle3", target)
    config, _ = read(tmp_path / "eagle3")
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


@pytest.mark.parametrize("design", sorted(set(DESIGNS) - {"hidden", "mtp"}))
def test_other_designs_are_refused(tmp_path: Path, target: PreTrainedModel, design: str) -> None:
    saved_drafter(tmp_path / "drafter", target, design)
    with pytest.raises(DraftgaugeError, match=f"the {design} design has no EAGLE-3 layout.*--reuse hidden"):
        export(tmp_path / "drafter", out=tmp_path / "eagle3")
    assert not (tmp_path / "eagle3").exists()


def test_drafters_and_folders_that_cannot_be_used_are_refused(tmp_path: Path, target: PreTrainedModel) -> None:
    saved_drafter(tmp_path / "drafter", target)
    with pytest.raises(DraftgaugeError, match="the drafter itself"):
        export(tmp_path / "drafter", out=tmp_path / "drafter")
    (tmp_path / "drafter" / "drafter.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="not the one that"):
        export(tmp_path / "drafter", out=tmp_path / "eagle3")
    saved_drafter(tmp_path / "gemma", tiny_model("gemma", num_hidden_layers=4))
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
    saved_drafter(tmp_path / "drafter", target, **options)
    result = succeeds("export", str(tmp_path / "drafter"), "--out", str(tmp_path / "out"))
    assert all(word in result.stdout for word in lacks)
    assert ("llama.cpp cannot run it" in result.stdout) == bool(lacks)
    assert ("--spec-type draft-eagle3" in result.stdout) == (not lacks)


def test_the_command_prints_how_engines_load_it(tmp_path: Path, target: PreTrainedModel) -> None:
    saved_drafter(tmp_path / "drafter", target, target_source="reference")  # engines do not know what that is
    result = succeeds("export", str(tmp_path / "drafter"), "--format", "eagle3", "--out", str(tmp_path / "out"))
    assert f"vllm: vllm serve {reference_path('target')} " in result.stdout
    assert f'"model": "{tmp_path / "out"}", "num_speculative_tokens": {DEPTHS}' in result.stdout
    assert "--speculative-algorithm EAGLE3" in result.stdout
    assert "eagle3" in refusal("export", str(tmp_path / "drafter"), "--format", "onnx", "--out", str(tmp_path / "out"))


@pytest.mark.parametrize("at", range(1, 7))
def test_a_killed_export_does_not_keep_the_next_one_out(
    at: int, tmp_path: Path, target: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each of its writes to disk, it leaves no configuration, so that no engine loads a part."""
    saved_drafter(tmp_path / "drafter", target)
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


def training(target: Path, out: Path) -> list[str]:
    """The command's words."""
    prompts = out.with_suffix(".jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {n}: "}) + "\n" for n in range(4)))
    words = ["--target", str(target), "--prompts", str(prompts), "--out", str(out), "--new-tokens", "12"]
    return ["train", "--recipe", "block", "--reuse", "hidden", "-k", "4", "--batch", "2", "--steps", "2", *words]


def test_what_is_trained_by_default_is_exported_and_drafts_the_same(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", num_hidden_layers=8, vocab_size=104)
    succeeds(*training(target, tmp_path / "drafter"))
    config = read_own_config(tmp_path / "drafter")
    assert (config.mask_token, config.norm_before_fc) == (103, False)  # the last row that the tokenizer leaves
    shown = succeeds("export", tmp_path / "drafter", "--out", tmp_path / "out")
    assert '"method": "dflash"' in shown.stdout
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["speculators_model_type"], written["block_size"], written["mask_token_id"]) == ("dflash", 5, 103)
    assert written["sliding_window_non_causal"]  # else vLLM makes every layer causal
    assert written["aux_hidden_state_layer_ids"] == [layer + 1 for layer in config.hidden_layers]

    prompt, settings, drafts = tokens(6).tolist() * 2, DecodingSettings(24), []
    for drafter in ("drafter", "out"):  # the checkpoint names its target
        pair = load_pair(drafter=str(tmp_path / drafter))
        output = speculative_decode(pair.target, pair.drafter(), FixedLength(4), prompt, settings)
        assert output.tokens == plain_decode(pair.target, prompt, settings).tokens
        drafts.append([(step.drafted, step.accepted) for step in output.steps])
    assert drafts[0] == drafts[1]


def test_without_a_token_to_spare_the_mask_is_learned_and_nothing_exported(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", num_hidden_layers=4)  # its 96 rows are the tokenizer's
    words = training(target, tmp_path / "drafter")
    assert "no token to spare for DFlash's mask" in refusal(*words)
    succeeds(*words, "--no-dflash")
    with pytest.raises(DraftgaugeError, match="trained without --dflash: its mask is learned"):
        export(tmp_path / "drafter", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "format_", "message"),
    [
        ({"design": "kv"}, None, "the kv design has no DFlash layout"),
        ({"block": 0, "mask_token": None}, "dflash", "goes token by token: use eagle3"),
        ({}, "eagle3", "proposes whole blocks: export it as dflash"),
        ({"markov_rank": 4}, None, r"a Markov head \(markov_rank\), which DFlash lacks"),
        ({"confidence_head": True}, None, r"a confidence head \(confidence_head\), which DFlash lacks"),
    ],
)
def test_the_setting_that_stands_against_it_is_named(tmp_path: Path, options: Any, format_: Any, message: str) -> None:
    module = tiny_model(num_hidden_layers=4)
    settings = {"design": "hidden", "block": 4, "mask_token": 95} | options
    if settings["design"] != "hidden":
        with pytest.raises(ModelError, match="DFlash reads hidden states alone"):
            reuse_config(module.config, **settings)
        settings["mask_token"] = None
    config = reuse_config(module.config, target_fingerprint=target_fingerprint(module), **settings)
    save_drafter(tmp_path / "drafter", new_net(config, module, 5), {})
    with pytest.raises(DraftgaugeError, match=message):
        export(tmp_path / "drafter", out=tmp_path / "out", format=format_)
