"""An MTP head learns and goes through every verb; several processes do what one does."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from command_line import rows_of
from draftgauge.api import train
from draftgauge.api.bench import bench
from draftgauge.api.diagnose import diagnose
from draftgauge.api.evaluate import evaluate
from draftgauge.api.export import export
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.api.study import study_kvshot
from draftgauge.cli.main import run
from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.base import Drafting, LoadOptions, choose_drafter
from draftgauge.drafters.mtp.live import MtpDrafter, MtpSource, drafting_net
from draftgauge.drafters.reuse.building import new_net
from draftgauge.drafters.reuse.config import reuse_config
from draftgauge.drafters.reuse.own_layer import OwnLayerNet
from draftgauge.models import device
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model, wrap
from draftgauge.models.taps import TapPlan, attach_taps, batch_features
from draftgauge.pair.deployed import checkpoint_format
from draftgauge.serving.engines import engine_of
from draftgauge.traces.run import Run
from draftgauge.training import world
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter
from forked import ended, fork
from lossless import assert_greedy_is_plain, assert_replay_is_live, assert_sampling_keeps_the_law
from mtp_heads import head_tensors
from small_profiles import save_hybrid
from small_trainings import log, small_training
from tiny import tiny_model, tokens
from tiny_families import tiny_family

VOCABULARY = 8


def net_for(target: CachedModel) -> OwnLayerNet:
    config = reuse_config(target.module.config, "mtp", target_fingerprint="tiny")
    net = new_net(config, target.module, 3)
    assert isinstance(net, OwnLayerNet)
    for parameter in net.parameters():  # a norm of one would hide a norm of the wrong name
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return net.eval().requires_grad_(False)


def target_of(kind: str) -> CachedModel:
    if kind in ("llama", "qwen3", "gemma2"):
        return wrap(tiny_model(kind, num_hidden_layers=3, vocab_size=VOCABULARY))
    layers = 4 if kind.startswith("qwen3_5") else 2
    return wrap(
        tiny_family(kind, sizes=[(layers, "num_hidden_layers n_layers num_layers"), (VOCABULARY, "vocab_size")])
    )


def drafted(net: OwnLayerNet, target: CachedModel, text: Tensor, follow: Tensor) -> Tensor:
    """``[depths, V]`` as the drafter computes them after a text."""
    live = drafting_net(net, target)
    hidden = batch_features(target.module, text[None], net.config.tap_plan).hidden[0]
    cache = live.begin()
    begin = live.take_in(cache, text[1:], hidden[:-1])
    branches = live.branches(cache, len(text) - 2, begin[-1:])
    return torch.cat([branches.logits, *(branches.advance(token[None]) for token in follow)])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "qwen3_5_text", "deepseek_v3", "mellum", "gpt2"])
def test_training_computes_what_drafting_does(kind: str) -> None:
    target = target_of(kind)
    net, depths = net_for(target), 4
    texts = torch.stack([tokens(16, seed, VOCABULARY) for seed in (1, 2)])
    features = batch_features(target.module, texts, net.config.tap_plan)
    states = net.unroll(texts, features, depths, 3)
    drawn = torch.tensor([[4, 9, -1], [3, 5, 10]])
    some = net.unroll_from(texts, features.hidden[:, :, 0], depths, drawn)
    for row, at in ((0, 4), (0, 9), (1, 3), (1, 10)):
        expected = drafted(net, target, texts[row, : at + 2], texts[row, at + 2 : at + 1 + depths])
        for each in (
            torch.stack([state[row, at - 3] for state in states]),
            torch.stack([state[row, drawn[row].tolist().index(at)] for state in some]),
        ):
            torch.testing.assert_close(net.logits(each), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text"])
def test_output_is_the_plain_one_and_sampling_keeps_the_law(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(kind)
    net = drafting_net(net_for(target), target)
    taps = attach_taps(target, MtpSource("", net).tap_plan)

    def make(how: Drafting) -> MtpDrafter:
        return MtpDrafter(net, target, taps, *how)

    assert_greedy_is_plain(target, make, tokens(9, vocabulary=VOCABULARY).tolist())
    assert_replay_is_live(target, make, [2], set())
    assert_sampling_keeps_the_law(monkeypatch, target, target.module, make, [2, 3, 4])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSpec, Path]:
    """A head that has learned what a tiny target says, in ``head``; its prompts beside it."""
    place = tmp_path_factory.mktemp("trained")
    usual = {"reuse": "mtp", "steps": 60, "batch": 4, "log_every": 15, "learning_rate": 5e-3, "precision": "fp32"}
    request = small_training(place, [f"Count to {n * n}: " for n in range(12)], **usual)
    train_drafter(request, place / "head")
    return request, place


def test_it_learns_and_is_accepted(trained: tuple[TrainingSpec, Path], tmp_path: Path) -> None:
    request, place = trained
    rows = log(place / "head")
    assert rows[-1]["loss"] < 0.4 * rows[0]["loss"]
    assert rows[-1]["agreement/2"] > 0.8 > 0.3 > rows[0]["agreement/0"]
    untrained = replace(request, steps=1, learning_rate=1e-9)
    train_drafter(untrained, tmp_path / "untrained")
    mat = {}
    for folder in (place / "head", tmp_path / "untrained"):
        measured = evaluate(folder, prompts=place / "prompts.jsonl", max_new_tokens=12, limit=6)
        (whole,) = (row for row in measured if "mat" in row)
        assert whole["live_mismatched_prompts"] == 0
        mat[folder] = whole["live_mat"]
        assert whole["mat"] == pytest.approx(whole["live_mat"], rel=0.2)
    assert mat[place / "head"] > mat[tmp_path / "untrained"] + 1


def test_its_folder_is_an_mtp_head_in_every_verb(trained: tuple[TrainingSpec, Path], tmp_path: Path) -> None:
    request, place = trained
    head, prompts = place / "head", place / "prompts.jsonl"
    assert choose_drafter(head) == ("mtp", head)
    names = set(load_file(head / "drafter.safetensors"))
    assert {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.q_proj.weight"} < names
    usual = {"prompts": prompts, "target": request.target, "max_new_tokens": 12, "limit": 6}
    profile(drafter=head, out=tmp_path / "run", gamma_max=4, cost_seconds=0, **usual)
    fixed = replay(tmp_path / "run", policies=("fixed:3",))
    assert next(row for row in fixed if row["policy"] == "fixed:3")["tokens_per_step"] > 2
    found = bench(drafter=head, policies=("fixed:3",), rounds=1, **usual)
    assert next(row for row in found if row["policy"] == "fixed:3")["mismatched_prompts"] == 0
    decay = {"decay": (str(head), "lookup"), "held_out": str(prompts), "target": request.target}
    rows = {row["drafter"]: row for row in study_kvshot(out=tmp_path / "decay", **decay).rows}
    assert rows[str(head)]["alpha_1"] > rows["lookup"]["alpha_1"]
    diagnosed = diagnose(head, prompts=prompts, max_new_tokens=8, limit=3)
    groups = {row["group"]: row for row in diagnosed if "gradient_share" in row}
    assert {"mtp.fc", "mtp.layers.0.self_attn.k_proj"} <= groups.keys()
    assert all(row["draft_share"] > 0 for row in groups.values())
    with pytest.raises(DraftgaugeError, match="no serving engine loads an MTP head of qwen3 targets"):
        export(head, out=tmp_path / "exported")
    with pytest.raises(DraftgaugeError, match="engines read it out of the target's own files"):
        checkpoint_format(engine_of("vllm"), Run(tmp_path / "run"))


def test_a_head_of_qwen3_5_is_exported_in_its_keys(tmp_path: Path) -> None:
    save_hybrid(tmp_path / "target")
    request = small_training(tmp_path / "other", reuse="mtp")
    request = replace(request, target=str(tmp_path / "target"), answers=None)
    train_drafter(request, tmp_path / "head")
    export(tmp_path / "head", out=tmp_path / "exported")
    target = load_model(tmp_path / "target", "fp32", "cpu")
    ours, theirs = (MtpSource.load(tmp_path / name, target, LoadOptions()).net for name in ("head", "exported"))
    text = tokens(9)
    hidden = batch_features(target.module, text[None], TapPlan(ours.layout.taps)).hidden[0]
    states = [net.take_in(net.begin(), text[1:], hidden[:-1]) for net in (ours, theirs)]
    torch.testing.assert_close(*states)
    named = set(load_file(tmp_path / "exported" / "model.safetensors"))
    assert named == {name for name in head_tensors(target.module) if name.startswith("mtp.")}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 2}, "the mtp design has one layer, not 2"),
        ({"taps": (1,)}, "taps is not for an MTP head"),
        ({"draft_vocabulary": 40}, "draft_vocabulary is not for an MTP head"),
        ({"llama_cpp": True}, "llama_cpp is not for an MTP head"),
        ({"kv_gradient": 2.0}, "kv_gradient is for the recipe ttt and other designs"),
    ],
)
def test_what_a_head_has_no_place_for_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DraftgaugeError, match=said):
        train_drafter(small_training(tmp_path, **{"reuse": "mtp"} | change), tmp_path / "head")


STEPS, KILLED, CODE = 6, 3, 9
SHOWN = ("target", "reuse", "prompts", "new_tokens", "depths", "length", "steps", "batch", "checkpoint_every", "cache")
SHOWN += ("log_every", "device")


def trained_by(rank: str, request: TrainingSpec, folder: Path, ports: list[str], killed: TrainingSpec) -> None:
    """One of two processes as torchrun starts them: the command line, and then a training until both are killed."""
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
    other = {name: getattr(request, name) for name in ("precision", "threads", "attention_start", "optimizer")}
    train.train_drafter = lambda request, *rest, **named: train_drafter(replace(request, **other), *rest, **named)
    sys.argv = ["draftgauge", "train", "--out", str(folder), "--json", str(folder.parent / "rows.json")]
    for name in SHOWN:
        sys.argv += [f"--{name.replace('_', '-')}", str(getattr(request, name))]
    with suppress(SystemExit):  # the process that does not speak
        assert run() == 0
    os.environ["MASTER_PORT"] = ports[1]
    train_drafter(killed, folder.parent / "killed", report=lambda row: row["step"] == KILLED and os._exit(CODE))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    return small_training(
        tmp_path_factory.mktemp("parallel"),
        ["Count" + n * " on" for n in range(9)],
        reuse="hybrid",
        steps=STEPS,
        batch=4,
        checkpoint_every=2,
        log_every=1,
        precision="fp32",
        device="cpu",
        threads=1,
        attention_start="random",  # else some gradients are so small that AdamW takes rounding for them
        optimizer="adamw",  # Muon orthogonalises in bfloat16, which makes more of rounding
    )


@pytest.fixture(scope="module")
def accumulated(base: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process in two parts a step."""
    folder = tmp_path_factory.mktemp("accumulated") / "run"
    train_drafter(replace(base, accumulation=2), folder)
    return folder


@pytest.fixture(scope="module")
def shared(base: TrainingSpec, accumulated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, which make the answers too; beside it one that was killed."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    request = replace(base, answers=None, cache=folder.parent / "features")
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        ports = [str(probe.getsockname()[1]) for probe in (first, second)]
    both = [fork(folder.parent / rank, trained_by, rank, request, folder, ports, base) for rank in "01"]
    said = "".join(ended(process) for process in both)
    assert max(process.exitcode or 0 for process in both) == CODE, said
    assert said.count("Trained") == 1  # one process speaks
    assert [row["steps"] for row in rows_of(folder.parent / "rows.json")] == [STEPS]
    assert train_drafter(request, folder).steps == STEPS  # finished: nothing is done
    return folder


def assert_same_run(one: Path, other: Path, tolerance: float) -> None:
    """The same tokens and figures at every step, and weights that agree."""
    for ours, theirs in zip(log(one), log(other), strict=True):
        for key in ("step", "loss", "gradient_norm", "agreement/0", "agreement/2", "gate_mean", "gate_open"):
            assert ours[key] == pytest.approx(theirs[key], rel=10 * tolerance, abs=10 * tolerance), key
    results = [json.loads((folder / "drafter.json").read_text())["extra"]["result"] for folder in (one, other)]
    assert results[0]["tokens"] == results[1]["tokens"] > 0
    weights = [load_file(folder / "drafter.safetensors") for folder in (one, other)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=tolerance, rtol=0, msg=name)


@pytest.mark.slow
def test_two_processes_do_what_one_does_that_accumulates(base: TrainingSpec, shared: Path, tmp_path: Path) -> None:
    request = replace(base, accumulation=2, answers=shared / "answers.jsonl", cache=shared.parent / "features")
    train_drafter(request, tmp_path / "one")
    assert_same_run(tmp_path / "one", shared, 1e-6)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes(base: TrainingSpec, accumulated: Path, shared: Path) -> None:
    folder = shared.parent / "killed"  # behind the checkpoint of step 2
    assert (folder / "checkpoints").exists()
    assert not (folder / "drafter.json").exists()
    train_drafter(base, folder)
    assert_same_run(accumulated, folder, 2e-5)  # two parts, and one


@pytest.mark.parametrize(
    ("size", "change", "words"),
    [
        (3, {"batch": 4}, "4 conversations cannot be split evenly among 3 devices"),
        (2, {"accumulation": 4, "batch": 4}, "devices of 4 parts each: ask for a batch that 8 divides"),
        (9, {"batch": 9}, r"9 devices are asked for, and this machine has 4 cores \(cpu\)"),
        (2, {"device": "cuda"}, "device cuda is not there: torch sees 0"),
        (1, {"device": "cuda:3"}, "device cuda:3 is not there"),
        (1, {"device": "tape"}, "there is no device 'tape'"),
    ],
)
def test_devices_that_are_not_there_or_do_not_divide(
    base: TrainingSpec, tmp_path: Path, size: int, change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for name, value in zip(world.VARIABLES, (0, size, 0, size), strict=True):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(DraftgaugeError, match=words):
        train_drafter(replace(base, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_gpu_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.numbered("cuda", 1) == torch.device("cuda:1")
    device.check_devices("cuda", 2)
    with pytest.raises(DraftgaugeError, match="name the kind alone"):
        device.check_devices("cuda:0", 2)
