"""What the doctor sees in the files of MTP heads, and how it finds that a head reads its inputs in another way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import draftgauge as dg
from draftgauge.drafters.mtp.building import build_mtp
from draftgauge.drafters.mtp.checking import HeadFaults, head_faults
from draftgauge.models.loading import load_model
from draftgauge.models.spec import read_configuration
from mtp_heads import save_with_heads
from tiny import tiny_tokenizer

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]
WEIGHTS = "model.safetensors"


def changed(part: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda held: {name: change(each) if part in name else each for name, each in held.items()}


def without(part: str) -> Change:
    return lambda held: {name: each for name, each in held.items() if part not in name}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_5")
    save_with_heads(folder, "qwen3_5_text", vocab_size=96)
    return folder


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        (without("mtp."), "missing", "and holds 0: mtp.fc.weight, .* are missing"),
        (without("mtp.fc"), "missing", "mtp.fc.weight are missing"),
        (changed("mtp.fc", lambda each: each.to(torch.int8)), "quantised", "mtp.fc.weight are quantised"),
        (changed("mtp.", lambda each: each + 1 if each.ndim == 1 else each), "shifted", "1 was added twice"),
        (changed("mtp.", lambda each: each - 1 if each.ndim == 1 else each), "shifted", "1 was never added"),
        (changed("mtp.fc", lambda each: each[:, :8]), "made_for", "another width than 64"),
        (dict, "", None),
    ],
)
def test_faults_of_heads_show_in_headers_and_norms(
    folder: Path, tmp_path: Path, change: Change, field: str, said: str | None
) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    held = change(load_file(folder / WEIGHTS))
    save_file({name: each.contiguous() for name, each in held.items()}, tmp_path / WEIGHTS)
    faults = head_faults(tmp_path, read_configuration(tmp_path, False).get_text_config(), tmp_path)
    if said is None:
        assert faults == HeadFaults("", "", "", "")
        return
    assert re.search(said, getattr(faults, field))


def test_the_doctor_tries_other_layouts(tmp_path: Path) -> None:
    """A head whose inputs were exchanged computes what it did once they are read the other way."""
    save_with_heads(tmp_path, "qwen2", vocab_size=96)
    tiny_tokenizer(96).save_pretrained(tmp_path)
    target, states = load_model(tmp_path, "fp32", "cpu"), torch.randn(5, 1, 64)

    def given(exchanged: bool) -> Tensor:
        net = build_mtp(tmp_path, target)
        if exchanged:
            net = net.read_as(replace(net.family, hidden_first=False), target.module)
        return net.take_in(net.begin(), torch.arange(5), states)

    before, held = given(False), load_file(tmp_path / WEIGHTS)
    held["mtp_layers.0.input_proj.weight"] = torch.cat(held["mtp_layers.0.input_proj.weight"].chunk(2, 1)[::-1], 1)
    save_file(held, tmp_path / WEIGHTS, metadata={"format": "pt"})
    torch.testing.assert_close(given(True), before)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt number {n}", "task": "a"}) for n in range(3)))
    asked = {"target": tmp_path, "drafter": "mtp", "prompts": prompts, "device": "cpu"}
    rows = dg.doctor(**asked, max_new_tokens=12, gamma_max=1, cost_seconds=0)
    seen = {row["check"]: row for row in rows}
    assert seen["mtp-tensors"]["status"] == seen["mtp-quantised"]["status"] == "well"
    assert "with state, then embedding, before the final norm" in seen["mtp-layout"]["evidence"]
