"""How attention starts, and what is refused before any work; a plan is right about sizes."""

from __future__ import annotations

import importlib
import json
import shlex
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from command_line import draftgauge, refusal, rows_of, succeeds
from draftgauge.api.train import train
from draftgauge.core.errors import DraftgaugeError, MissingLibraryError
from draftgauge.drafters.formats.eagle3 import llama_cpp_lacks
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.net import ReuseNet
from draftgauge.drafters.reuse.rotary import window
from draftgauge.models.base import decoder_layers
from draftgauge.requests import TrainRequest
from draftgauge.training.reuse import features, start, tracking
from draftgauge.training.reuse.prepare import drafter_config, target_config
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.start import fit_head_maps, start_attention
from draftgauge.training.reuse.steps import Muon, make_optimizers, orthogonal
from draftgauge.training.reuse.train import train_drafter
from small_trainings import log, small_training
from tiny import tiny_model, tokens

PARTS = {"queries": "q_proj", "keys": "k_proj", "values": "v_proj"}


@pytest.fixture
def target() -> PreTrainedModel:
    return tiny_model("llama", num_hidden_layers=4)


@pytest.fixture
def texts() -> list[Tensor]:
    return [tokens(64, seed) for seed in range(24)]


def drafter(target: PreTrainedModel, design: str = "kv", **settings: object) -> ReuseNet:
    return new_net(reuse_config(target.config, design, **settings), target, 0)  # type: ignore[arg-type]


def test_heads_that_follow_from_the_token_are_found(target: PreTrainedModel, texts: list[Tensor]) -> None:
    """The first layer of a target without norms of heads reads nothing but the normalised embedding."""
    (maps,) = fit_head_maps(drafter(target), target, [0], texts)
    assert maps.explained > 0.99
    for part, projection in PARTS.items():
        true = getattr(decoder_layers(target)[0].self_attn, projection).weight.detach()
        assert (maps.weights[part].flatten(0, 1) - true).norm() < 0.15 * true.norm()  # type: ignore[index]


@pytest.mark.parametrize("injection", ["project", "project-rope"])
def test_a_projection_hands_on_the_layer_that_is_explained_best(
    target: PreTrainedModel, texts: list[Tensor], injection: str
) -> None:
    net = drafter(target, injection=injection)
    maps = start_attention(net, target, "target", texts)
    chosen = max(range(len(maps)), key=lambda slot: maps[slot].explained)
    block = net.blocks[0]
    layers, heads, dim = len(net.config.kv_layers), net.config.kv_heads, net.config.head_dim
    keys, values = torch.randn(2, 1, layers, heads, 5, dim)
    handed_on = block.injection(keys, values, window(net.tables(8, keys), 3, 8))
    for found, given in zip(handed_on, (keys, values), strict=True):
        torch.testing.assert_close(found, given[:, chosen], atol=1e-5, rtol=1e-5)
    expected = torch.cat([maps[chosen].weights[part] for part in PARTS]).flatten(0, 1)  # type: ignore[index]
    torch.testing.assert_close(block.chain_attention.from_token.weight.detach(), expected)


def test_a_drafter_attends_to_cached_keys_as_the_target_does(target: PreTrainedModel, texts: list[Tensor]) -> None:
    """Its queries of a token at a position are those of the target's layer there, to the error of the map."""
    net = drafter(target, taps=(0,))
    start_attention(net, target, "target", texts)
    block, ids = net.blocks[0], texts[0][None]
    tables = window(net.tables(64, net.embed(ids)), 0, 64)
    part = block.token_parts(net.embed(ids)).chain
    with torch.no_grad():
        heads = block.chain_attention.heads(part, None, tables)
        cached = target(input_ids=ids, use_cache=True).past_key_values.layers[0].keys
    error = (heads.keys - cached).norm() / cached.norm()
    assert error < 0.1


@pytest.mark.parametrize("design", ["hybrid", "cross"])
def test_the_state_says_nothing_to_the_chain_at_first(
    target: PreTrainedModel, texts: list[Tensor], design: str
) -> None:
    net = drafter(target, design)
    start_attention(net, target, "target", texts)
    attention = net.blocks[0].chain_attention
    assert not attention.from_state.weight.any()


def same_weights(one: ReuseNet, other: ReuseNet) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_designs_and_targets_without_such_a_start_attend_to_themselves(
    target: PreTrainedModel, texts: list[Tensor]
) -> None:
    hidden, matched = drafter(target, "hidden"), drafter(target, "hidden")
    assert start_attention(hidden, target, "target", texts) == start_attention(matched, target, "self", []) == []
    assert same_weights(hidden, matched)
    started, fresh = drafter(target), drafter(target)
    assert start_attention(started, target, "random", texts) == []
    assert same_weights(started, fresh), "random leaves the weights"
    strange = drafter(target, "control")
    strange.config = replace(strange.config, target_family="mamba")
    with pytest.warns(UserWarning, match="projections of mamba targets are not known"):
        assert start_attention(strange, target, "target", texts) == []


@pytest.mark.parametrize(("name", "count"), [("adamw", 1), ("muon", 2)])
def test_every_parameter_has_one_optimizer(target: PreTrainedModel, name: str, count: int) -> None:
    net = drafter(target, "hybrid")
    optimizers = make_optimizers(net, name)
    assert len(optimizers) == count
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, held)) == sorted(map(id, net.parameters()))
    decaying = {id(p) for o in optimizers for group in o.param_groups if group["weight_decay"] for p in group["params"]}
    assert decaying == {id(p) for p in net.parameters() if p.ndim >= 2}
    if name == "muon":
        orthogonal = {id(p) for group in optimizers[1].param_groups for p in group["params"]}
        assert id(net.head.weight) not in orthogonal
        assert orthogonal == {id(p) for n, p in net.named_parameters() if p.ndim == 2 and not n.startswith("head")}


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_muon_is_that_of_torch_in_bfloat16(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    monkeypatch.setattr("draftgauge.training.reuse.steps.autocast_dtype", lambda device: torch.bfloat16)
    start, gradients = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    torchs = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for optimizer, matrix in ((Muon([ours], {"lr": 0.1, "weight_decay": 0.1}), ours), (torchs, theirs)):
        for gradient in gradients:
            matrix.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_muon_takes_float32_where_bfloat16_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftgauge.training.reuse.steps.autocast_dtype", lambda device: None)
    found = orthogonal(torch.randn(24, 40))
    assert found.dtype == torch.float32
    sizes = torch.linalg.svdvals(found)
    assert sizes.min() > 0.6
    assert sizes.max() < 1.3


@torch.no_grad()
def test_texts_too_short_to_draft_from_are_passed_over(target: PreTrainedModel, texts: list[Tensor]) -> None:
    short = [text[:3] for text in texts[:5]]
    with_both, with_long, with_short, fresh = (drafter(target) for _ in range(4))
    for net, given in ((with_both, [*short, *texts]), (with_long, texts), (with_short, short)):
        start._balance(net, target, given)
    assert same_weights(with_both, with_long)
    assert same_weights(with_short, fresh)
    assert not same_weights(with_long, fresh)


QWEN3_8B = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096}
QWEN3_8B |= {"intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
QWEN3_8B |= {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}
QWEN3_8B |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "tie_word_embeddings": False}


def plan(training: TrainingSpec, out: Path | None = None) -> list[dict[str, Any]]:
    return train(TrainRequest(out=out, plan=True, training=training))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    return small_training(tmp_path_factory.mktemp("refusals"), [f"Count to {n}: " for n in range(6)], new_tokens=8)


@pytest.fixture(scope="module")
def trained(base: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained")
    train_drafter(replace(base, reuse="kv"), folder)
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"taps": (0, 9)}, "no layer 9"),
        ({"target": "reference", "prompts": Path("/nowhere.jsonl")}, "no prompt file"),
        ({"target": "/nowhere"}, "/nowhere"),
        ({"prompts": None}, "--prompts FILE"),
        ({"compression": "int3"}, "unknown compression"),
        ({"length": 1024, "depths": 127}, "do not fit the 128 tokens that the target takes"),
        ({"warm_start": Path("/nowhere"), "reuse": "hybrid"}, "holds no trained drafter"),
        ({"depths": 63}, "63 draft steps do not fit a sequence of 64 tokens, which has room for 62"),
        ({"depths": 0}, "depths must be at least 1"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"accumulation": 3}, "cannot be split"),
        ({"warmup": 1.0}, "warmup"),
        ({"learning_rate": 0.0}, "learning_rate must be a number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number above 0"),
        ({"precision": "fp16"}, "precision must be one of"),
        ({"attention_start": "x"}, "attention_start must be one of"),
        ({"optimizer": "x"}, "optimizer must be one of"),
        ({"kv_gradient": 50.0, "reuse": "hidden"}, "kv_gradient is for the recipe ttt and other designs than hidden"),
        ({"kv_gradient": 50.0, "reuse": "kv", "recipe": "block"}, "kv_gradient is for the recipe ttt"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    base: TrainingSpec, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(DraftgaugeError, match=words):
        train_drafter(replace(base, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_warm_start_of_another_design(base: TrainingSpec, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DraftgaugeError, match="takes a hybrid or cross drafter from a hidden one, not a hybrid one from a kv"
    ):
        train_drafter(replace(base, reuse="hybrid", warm_start=trained), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_drafter_for_llama_cpp_has_what_that_computes(base: TrainingSpec) -> None:
    plain, chosen = replace(base, reuse="hidden"), replace(base, reuse="hidden", llama_cpp=True)
    config = target_config(base)
    assert llama_cpp_lacks(drafter_config(plain, config)) is not None
    assert llama_cpp_lacks(drafter_config(chosen, config)) is None


def test_a_folder_that_holds_another_run(base: TrainingSpec, trained: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    with pytest.raises(DraftgaugeError, match=r"holds another run \(seed 0 there, 1 here\)"):
        train_drafter(replace(base, reuse="kv", seed=1), trained)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DraftgaugeError, match=r"thesis\.tex, which is no training run"):
        train_drafter(base, tmp_path)


def test_too_little_disk_and_the_cache_of_another_run(
    base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(base, cache=tmp_path / "cache")
    train_drafter(request, tmp_path / "first")
    with pytest.raises(DraftgaugeError, match="other length"):
        train_drafter(replace(request, length=32), tmp_path / "second")
    kept = sum(path.stat().st_size for path in request.cache.glob("*.safetensors")) / 1e9
    for design in ("hidden", "control"):  # a cache serves every design, whichever fills it
        assert plan(replace(request, reuse=design))[0]["disk_features"] == pytest.approx(kept, rel=0.05)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(features.shutil, "disk_usage", lambda path: usage(10**9, 0, 10))
    with pytest.raises(DraftgaugeError, match="to spare"):
        plan(replace(request, cache=tmp_path / "third"), tmp_path / "third-run")
    with pytest.raises(DraftgaugeError, match="to spare"):
        train_drafter(replace(request, cache=tmp_path / "third"), tmp_path / "third-run")
    assert not (tmp_path / "third").exists()


def test_a_tracker_that_is_not_installed(base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibraryError, match="pip install wandb"):
        train_drafter(replace(base, track="wandb"), tmp_path / "run")


TRACKIO = """
calls = []
def init(project, name, config): calls.append((project, name, config["reuse"]))
def log(row, step): calls.append((step, row["loss"]))
def finish(): calls.append("finished")
"""


def test_trackers_are_told_what_the_log_is(base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(tmp_path)
    train_drafter(replace(base, track="trackio"), tmp_path / "run")
    calls = importlib.import_module("trackio").calls
    assert calls[0] == ("draftgauge", "run", "hybrid")
    assert calls[-1] == "finished"
    assert calls[1:-1] == [(row["step"], pytest.approx(row["loss"], rel=1e-5)) for row in log(tmp_path / "run")]


def test_the_plan_of_a_small_run_is_near_what_it_takes(base: TrainingSpec, trained: Path, tmp_path: Path) -> None:
    row = plan(replace(base, reuse="kv"), tmp_path / "run")[0]
    result = json.loads((trained / "drafter.json").read_text())
    assert row["parameters"] == result["parameters"]
    assert row["lengths"] == "answers"
    assert row["anchors_a_step"] * 2 == pytest.approx(result["extra"]["result"]["tokens"], abs=2)
    weights = sum(path.stat().st_size for path in trained.rglob("*.safetensors")) / 1e9
    assert weights < row["disk_checkpoints"] < 2 * weights
    assert not (tmp_path / "run").exists()


def test_a_plan_counts_the_prompts_where_there_are_no_answers_yet(base: TrainingSpec) -> None:
    asked = replace(base, answers=None)
    for questions, count in ((None, 6), (3000, 6), (4, 4)):
        assert plan(replace(asked, questions=questions))[0]["conversations"] == count
    with pytest.raises(DraftgaugeError, match="number of prompts is not known"):
        plan(replace(asked, questions=None, prompts=None))


def test_the_plan_of_an_8b_target_needs_its_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    request = TrainingSpec(
        target=str(tmp_path), reuse="hidden", questions=70_000, length=2048, cache=tmp_path / "cache"
    )
    row = plan(request)[0]
    assert row["target_parameters"] == pytest.approx(8.19e9, rel=0.01)
    assert 0.8e9 < row["parameters"] < 1e9  # of which 0.62e9 are the head
    assert row["memory_target"] == pytest.approx(row["target_parameters"] * 4 / 2**30, rel=0.01)  # float32 on a CPU
    # Three hidden states, the last, keys and values of three layers.
    tokens = row["disk_features"] * 1e9 / ((4 * 4096 + 2 * 3 * 8 * 128) * 2)
    assert tokens == pytest.approx(70_000 * (1024 + 160), rel=0.01)
    assert row["disk_features"] > 1000
    online = plan(replace(request, cache=None))[0]
    assert online["disk_features"] == 0
    assert online["disk"] < 50
    assert online["memory"] == row["memory"]
    smaller = plan(replace(request, draft_vocabulary=32_000))[0]
    assert row["parameters"] - smaller["parameters"] == (151_936 - 32_000) * 4096


def test_the_command_line(base: TrainingSpec, tmp_path: Path) -> None:
    common = ["train", "--target", base.target, "--prompts", str(base.prompts), "--new-tokens", "8", "--length", "64"]
    alike = ["--chat-template-args", '{"thinking": false}', "--trust-remote-code"]
    common += ["--steps", "2", "--batch", "2", "--depths", "3", "--reuse", "hybrid", *alike]
    common += ["--out", str(tmp_path / "run")]
    planned = succeeds(*common, "--plan")
    assert "Before anything starts" in planned.output
    assert not (tmp_path / "run").exists()
    shown = succeeds(*common, "--json", str(tmp_path / "rows.json")).stdout
    assert shlex.join(["evaluate", str(tmp_path / "run"), "--prompts", str(base.prompts), *alike]) in shown
    row = rows_of(tmp_path / "rows.json")[0]
    assert (row["design"], row["steps"], row["folder"]) == ("hybrid", 2, str(tmp_path / "run"))
    for wrong, words in (
        (["--taps", "0,77"], "no layer 77"),
        (["--taps", "low"], "--taps"),
        (["--seed", "4"], "another run"),
    ):
        assert words in refusal(*common, *wrong)
    assert draftgauge(common[:-2]).exit_code == 2  # no --out
