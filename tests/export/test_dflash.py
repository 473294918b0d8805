"""A block-wise drafter trained as `train` does by default is DFlash: exported, it drafts the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import refusal, succeeds
from draftgauge.api.export import export
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.decoding import DecodingSettings, plain_decode, speculative_decode
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.persistence import read_config, save_drafter, target_fingerprint
from draftgauge.pair.loading import load_pair
from draftgauge.policies.fixed import FixedLength
from tiny import save_tiny, tiny_model, tokens


def training(target: Path, out: Path) -> list[str]:
    """The command's words."""
    prompts = out.with_suffix(".jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {n}: "}) + "\n" for n in range(4)))
    words = ["--target", str(target), "--prompts", str(prompts), "--out", str(out), "--new-tokens", "12"]
    return ["train", "--recipe", "block", "--reuse", "hidden", "-k", "4", "--batch", "2", "--steps", "2", *words]


def test_what_is_trained_by_default_is_exported_and_drafts_the_same(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", num_hidden_layers=8, vocab_size=104)
    succeeds(*training(target, tmp_path / "drafter"))
    config = read_config(tmp_path / "drafter")
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
