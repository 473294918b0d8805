"""The GPU benchmark without a GPU: its shapes are the published ones, and every line runs, on a CPU or fake tensors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import PretrainedConfig

from draftgauge.decoding import DecodingSettings, speculative_decode
from draftgauge.drafters import LanguageModelDrafter
from draftgauge.models import compression
from draftgauge.models.loading import wrap
from draftgauge.policies.fixed import FixedLength
from fake_cuda import fake_cuda, on_gpu
from tiny import tiny_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PUBLISHED = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
}


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    import gpu

    return gpu


def test_shapes_have_as_many_weights_as_the_published_models(gpu: ModuleType) -> None:
    assert set(gpu.SHAPES) == set(PUBLISHED)
    for name, count in PUBLISHED.items():
        config = gpu.SHAPES[name]
        assert gpu.weight_bytes(config, "bf16", GPU) == 2 * count
        unread = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
        assert gpu.weight_bytes(config, "bf16", GPU, read=True) == 2 * (count - unread)
        for kind, least, most in (("int8", 0.5, 0.8), ("fp8", 0.5, 0.8), ("nf4", 0.28, 0.65)):
            assert least < gpu.weight_bytes(config, kind, GPU) / (2 * count) < most


@pytest.mark.skipif(bool(compression.missing_libraries("int8")), reason="bitsandbytes or accelerate is not installed")
def test_a_dry_run_measures_every_compression_and_writes_nothing(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = []
    attempt = gpu.attempt
    monkeypatch.setattr(gpu, "attempt", lambda *asked: rows.append(attempt(*asked)) or rows[-1])
    parts = [f"llama-3.1-70b-8b-{kind}" for kind in gpu.COMPRESSIONS] + ["qwen3-8b-0.6b-bf16"]
    assert gpu.main(["--dry", "--out", str(tmp_path), *(word for part in parts for word in ("--part", part))]) == 0
    assert [f"{row['pair']}-{row['compression']}" for row in rows] == [*parts[4:], *parts[:4]]
    for row in rows:
        assert row["engine"] in ("static", "lean")
        assert min(row[name] for name in ("plain_ms", "draft_ms", "plain_over_floor", "verify_8_over_1")) > 0
    assert rows[1]["target_gib"] == pytest.approx(2 * PUBLISHED["llama-3.1-70b"] / 2**30)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_random_weights_are_those_of_the_first_layer(gpu: ModuleType, kind: str) -> None:
    from gpu_models import random_model

    model = random_model(gpu.narrow(gpu.SHAPES["llama-3.1-8b"]), kind, CPU)
    first, second = (layer.mlp.down_proj.weight.float() for layer in model.model.layers)
    assert (first == second).all()
    assert first.std().item() == pytest.approx(0.02, rel=0.1)


def test_parts_that_are_there_are_kept_and_failed_ones_tried_again(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, setting = [gpu.PARTS["bundled-bf16"], gpu.PARTS["bundled-nf4"]], gpu.Setting(CPU, dry=True)
    asked = []

    def measure(part: object, _: object) -> dict[str, float]:
        asked.append(part)
        if len(asked) == 1:
            raise RuntimeError("an illegal memory access\nwas encountered")
        if len(asked) == 2:
            raise torch.OutOfMemoryError("tried to allocate 3 GiB")
        return {"plain_ms": 1.0}

    monkeypatch.setattr(gpu, "measure", measure)
    first = gpu.run_parts(parts, tmp_path, setting)
    assert first[0]["failed"] == "RuntimeError: an illegal memory access"
    assert first[1]["skipped"] == "OutOfMemoryError: tried to allocate 3 GiB"
    again = gpu.run_parts(parts, tmp_path, setting)
    assert asked == [*parts, parts[0]]
    assert again == [{"pair": "bundled", "compression": "bf16", "plain_ms": 1.0}, first[1]]
    assert json.loads((tmp_path / "bundled-bf16.json").read_text()) == again[0]


def test_waits_are_counted_without_the_warning_that_they_are(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    prototype = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    modes: list[str] = []

    def decode(*_: object) -> SimpleNamespace:
        for _ in range(3):
            if modes[-1:] == ["warn"]:
                warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)
        return SimpleNamespace(steps=[None] * 3)

    def switch(mode: str) -> None:
        modes.append(mode)
        warnings.warn(prototype, stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switch)
    monkeypatch.setattr(gpu, "speculative_decode", decode)
    draft = wrap(tiny_model(), "static")
    target = SimpleNamespace(spec=SimpleNamespace(device=GPU))
    assert gpu.waits_a_step(target, draft) == 1
    assert modes == ["warn", "default"]


def test_a_device_that_does_nothing_any_more_costs_no_row(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(gpu, "measure", broken)
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    row = gpu.attempt(gpu.PARTS["bundled-bf16"], gpu.Setting(GPU, dry=False))
    assert row["failed"].startswith("RuntimeError: CUDA error: an illegal memory access")


def test_without_a_gpu_nothing_is_measured(gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main(["--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())


def shallow(config: PretrainedConfig) -> PretrainedConfig:
    """The shape with four of its layers, which are all alike."""
    settings = config.to_dict() | {"num_hidden_layers": 4}
    settings |= {"layer_types": settings["layer_types"][:4]} if settings.get("layer_types") else {}
    return type(config)(**settings)


@pytest.mark.parametrize("pair", ["qwen3-8b-0.6b", "llama-3.1-70b-8b"])
def test_real_shapes_take_steps_on_fake_gpus(gpu: ModuleType, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices, dtypes and shapes fit, and a pass of any size is one launch of a graph."""
    from gpu_models import outline

    outlines = [outline(shallow(gpu.SHAPES[shape])) for shape in gpu.PARTS[f"{pair}-bf16"].shapes]
    setting, decoding = gpu.Setting(torch.device("cuda:0"), dry=True), DecodingSettings(4 * (gpu.GAMMA + 1))
    with fake_cuda(monkeypatch) as fake:
        target, draft = (wrap(on_gpu(each, "cuda:0", torch.bfloat16)) for each in outlines)
        assert (target.spec.engine, draft.spec.engine) == ("static", "static")
        for tokens in (1, 8):
            assert gpu.pass_seconds(target, tokens, 64, setting) > 0
        for _ in range(3):  # graphs are captured before
            with fake.counting() as counts:
                result = speculative_decode(
                    target, LanguageModelDrafter(draft), FixedLength(gpu.GAMMA), [1, 2, 3], decoding
                )
    assert counts.captures == 0
    assert counts.reads["tolist"] == len(result.steps)
    prompts = 2  # the target and its draft take the prompt in
    assert 0.8 < (counts.launches["graph"] - prompts) / ((gpu.GAMMA + 1) * len(result.steps)) <= 1
    assert counts.launches.total() <= 37 * len(result.steps)
