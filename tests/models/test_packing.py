"""Linears packed for oneDNN: bit by bit the same weights, held once, in the layout that is timed as the fastest."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from draftgauge.models.engines import packing
from draftgauge.models.engines.packing import Layout, Packing, packing_of
from draftgauge.models.loading import load_model, wrap
from tiny import LEAN, one_pass, save_tiny, tiny_model, tokens


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_FROM", 0)
    monkeypatch.setattr(packing, "_CHOSEN", {})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "gemma3", "mixtral"])
def test_an_owned_model_gives_its_weights_up_and_has_them_back_when_asked(family: str, tied: bool) -> None:
    model, text = tiny_model(family, tie_word_embeddings=tied), tokens(12)
    before, weights = one_pass(model, text), {name: part.clone() for name, part in model.state_dict().items()}
    cached = wrap(model, "lean", owned=True)
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.numel() == attention.o_proj.weight.numel() == 0
    assert (model.lm_head.weight.numel() == 0) != tied  # an embedding stays
    torch.testing.assert_close(cached.forward(text), before, rtol=1e-4, atol=5e-4)
    assert attention.q_proj.weight.numel() == 0  # decoding asks for nothing
    assert cached.module is model
    assert all(torch.equal(part, weights[name]) for name, part in model.state_dict().items())
    torch.testing.assert_close(one_pass(model, text), before)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # seconds of one token and of four: packed, packed as two, plain, plain as two
        ((5, 6, 5, 6, 7, 8, 7, 8), Layout(True)),
        ((7, 8, 5, 8, 9, 9, 9, 9), Layout(True, two=True)),
        ((7, 8, 6.5, 8, 9, 9, 9, 9), Layout(True)),  # too close to call
        ((5, 6, 5, 6, 3, 4, 3, 4), Layout(False)),
        ((5, 6, 5, 6, 6, 4, 3, 4), Layout(False, two=True)),
    ],
)
def test_the_layout_is_the_one_that_is_timed_as_the_fastest(times, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "TIMED_FROM", 0)
    monkeypatch.setattr(packing, "_seconds", Mock(side_effect=itertools.cycle(times)))
    model = tiny_model()
    assert packing_of(model, owned=True).layout == expected
    assert len(packing._some([torch.empty(3, 4), torch.empty(2, 4)])) == 2
    monkeypatch.setattr(packing, "TIMED", 1)
    assert [len(each) for each in packing._some([torch.empty(3, 4), torch.empty(2, 4)])] == [2]
    monkeypatch.setattr(packing, "TIMED", 32 << 20)
    monkeypatch.setattr(packing, "_seconds", None)  # a process times once
    assert packing_of(tiny_model(), owned=True).layout == expected


def test_a_processor_without_the_instructions_is_named_once_with_what_it_costs(monkeypatch) -> None:
    monkeypatch.setattr(packing, "TIMED_FROM", 0)
    monkeypatch.setattr(packing, "_cpu_multiplies", lambda weight: weight.dtype == torch.float32)
    monkeypatch.setattr(packing, "_seconds", Mock(side_effect=itertools.cycle((1.0, 2.5))))
    with pytest.warns(UserWarning, match=r"multiplies no bfloat16.*4 tokens take 2\.5 times one.*fp32") as said:
        cached, _ = (wrap(tiny_model().bfloat16(), "lean", owned=True) for _ in range(2))
    assert len(said) == 1
    assert cached.skeleton.lm_head.weight.numel()
    assert packing_of(tiny_model(), owned=True).layout.packed
    monkeypatch.setattr(packing, "private", lambda name: None)
    with pytest.warns(UserWarning, match=r"this PyTorch lacks what packs.*4 tokens take 2\.5 times one$"):
        packing_of(tiny_model(), owned=True)


@pytest.mark.parametrize("layout", [Layout(*flags) for flags in itertools.product((True, False), repeat=2)])
@torch.inference_mode()
def test_every_layout_multiplies_alike(layout: Layout) -> None:
    parts, x = [torch.nn.Linear(64, size) for size in (48, 16)], torch.randn(5, 64)
    expected = torch.cat([part(x) for part in parts], -1)
    multiply = Packing(layout, owned=True).multiply(parts)
    for rows in (1, 2, 5):
        torch.testing.assert_close(multiply(x[:rows]), expected[:rows])
    if layout.two:
        assert torch.equal(multiply(x[:1]), multiply(x[:1].repeat(2, 1))[:1])


MEASURE = """
import sys, torch
from draftgauge.models.loading import load_model
def resident(which):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(which))
load_model(sys.argv[1], "fp32", "cpu").forward(torch.tensor([1, 2, 3]))  # libraries
before = resident("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew
model = load_model(sys.argv[2], "fp32", "cpu")
model.forward(torch.tensor([1, 2, 3]))
print(resident("VmRSS") - before, resident("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")
def test_weights_are_held_once_while_loading_and_after(tmp_path: Path) -> None:
    wide = {"hidden_size": 768, "intermediate_size": 3072, "vocab_size": 32768, "num_hidden_layers": 2}
    small, large = save_tiny(tmp_path / "small", "llama"), tiny_model("llama", **wide).bfloat16()
    large.save_pretrained(tmp_path / "large")
    weights = 4 * sum(weight.numel() for weight in large.parameters())
    command = [sys.executable, "-c", MEASURE, small, tmp_path / "large"]
    held, most = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert 0.9 * weights < held < 1.15 * weights
    assert most < 1.5 * weights  # more than a third is the head, which is packed whole


@pytest.mark.parametrize(("family", "tied"), [*((family, False) for family in LEAN), ("qwen2", True), ("gemma3", True)])
def test_weights_stored_in_halves_are_widened_exactly(family: str, tied: bool, tmp_path: Path) -> None:
    tiny_model(family, tie_word_embeddings=tied).bfloat16().save_pretrained(tmp_path)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = exact.state_dict() | dict(exact.named_buffers())  # what is computed and not stored too
    for engine in ("lean", "modules"):
        cached = load_model(tmp_path, "fp32", "cpu", engine)
        assert engine != "lean" or not cached.skeleton.model.layers[0].self_attn.o_proj.weight.numel()
        assert cached.spec.dtype == cached.module.config.dtype == torch.float32
        found = cached.module.state_dict() | dict(cached.module.named_buffers())
        assert all(torch.equal(part, expected[name]) and part.dtype == torch.float32 for name, part in found.items())
    stored = load_file(tmp_path / "model.safetensors")
    stored["model.norm.weight"] = stored["model.norm.weight"].float() + 1e-4  # whose digits stay
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    assert torch.equal(load_model(tmp_path, "fp32", "cpu").module.model.norm.weight, stored["model.norm.weight"])
