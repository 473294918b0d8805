"""Several processes that share every step do what one process does that accumulates its parts."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftgauge.core.errors import DraftgaugeError
from draftgauge.models import device
from draftgauge.training import world
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter
from small_trainings import log, small_training

STEPS, KILLED, CODE = 6, 3, 9
SHOWN = ("target", "reuse", "prompts", "new_tokens", "depths", "length", "steps", "batch", "checkpoint_every", "cache")
SHOWN += ("log_every", "device")
OTHER = ("precision", "threads", "attention_start", "optimizer")
# Two processes as torchrun starts them, forked for the sake of what they import: the command line, with what it has no
# options for, and behind it another training, until both are killed.
PROGRAM = """
import os, pickle, sys, traceback
from dataclasses import replace
from draftgauge.api import train
from draftgauge.cli.main import run
ports, other, (request, folder) = {ports}, {other!r}, pickle.loads({killed!r})
train_drafter = train.train_drafter
train.train_drafter = lambda request, *rest, **named: train_drafter(replace(request, **other), *rest, **named)

def work(rank):
    os.environ |= {{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}
    os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}}
    try:
        code = run()
    except SystemExit as ended:  # the process that does not speak
        code = ended.code
    if not code:
        os.environ["MASTER_PORT"] = ports[1]
        train_drafter(request, folder, report=lambda row: row["step"] == {at} and os._exit({code}))

forked = []
for rank in "01":
    if not (number := os.fork()):
        try:
            work(rank)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    forked.append(number)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in forked))
"""


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
    arguments = ["train", "--out", str(folder), "--json", str(folder.parent / "rows.json")]
    for name in SHOWN:
        arguments += [f"--{name.replace('_', '-')}", str(getattr(request, name))]
    program = folder.parent / "program.py"
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        ports = [str(probe.getsockname()[1]) for probe in (first, second)]
    other = {name: getattr(request, name) for name in OTHER}
    killed = pickle.dumps((base, folder.parent / "killed"))
    program.write_text(PROGRAM.format(ports=ports, other=other, killed=killed, at=KILLED, code=CODE))
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == CODE, done.stderr
    assert done.stdout.count("Trained") == 1  # one process speaks
    (row,) = json.loads((folder.parent / "rows.json").read_text())["rows"]
    assert row["steps"] == STEPS
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
