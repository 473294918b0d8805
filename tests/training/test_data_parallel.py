"""Several processes that share every step do what one process does that accumulates its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import parallel_work
from draftgauge.core.errors import DraftgaugeError
from draftgauge.models import device
from draftgauge.training import world
from draftgauge.training.launch import launch
from draftgauge.training.reuse.request import TrainingSpec
from draftgauge.training.reuse.train import train_drafter
from tiny import save_tiny

STEPS = 6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingSpec:
    folder = tmp_path_factory.mktemp("parallel")
    target = save_tiny(folder / "target", num_hidden_layers=4, eos_token_id=95)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": "Count" + n * " on"}) + "\n" for n in range(9)))
    return TrainingSpec(
        target=str(target),
        reuse="hybrid",
        prompts=folder / "prompts.jsonl",
        new_tokens=12,
        answers=folder / "answers.jsonl",
        depths=3,
        length=64,
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
def shared(base: TrainingSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes, which make the answers too."""
    folder = tmp_path_factory.mktemp("shared") / "run"
    heard: list[Any] = []
    request = replace(base, devices=2, answers=None, cache=folder.parent / "features")
    result = train_drafter(request, folder, lambda *what: heard.append(what), heard.append)
    assert heard.count(("train", STEPS, STEPS)) == 1  # one process speaks
    assert sum(isinstance(row, dict) and row["step"] == STEPS for row in heard) == 1
    assert result.folder == folder
    assert result == train_drafter(replace(request, devices=1), folder)  # finished: nothing is done
    return folder


def log(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path, tolerance: float) -> None:
    """The same tokens and figures at every step, and weights that agree."""
    for ours, theirs in zip(log(one), log(other), strict=True):
        for key in (
            "step",
            "loss",
            "gradient_norm",
            "agreement/0",
            "agreement/2",
            "gate_mean",
            "gate_q05",
            "gate_open",
        ):
            assert ours[key] == pytest.approx(theirs[key], rel=10 * tolerance, abs=10 * tolerance), key
    results = [json.loads((folder / "drafter.json").read_text())["extra"]["result"] for folder in (one, other)]
    assert results[0]["tokens"] == results[1]["tokens"] > 0
    weights = [load_file(folder / "drafter.safetensors") for folder in (one, other)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=tolerance, rtol=0, msg=name)


def test_two_processes_do_what_one_does_that_accumulates(base: TrainingSpec, shared: Path, tmp_path: Path) -> None:
    request = replace(base, accumulation=2, answers=shared / "answers.jsonl", cache=shared.parent / "features")
    train_drafter(request, tmp_path / "one")
    assert_same_run(tmp_path / "one", shared, 1e-6)


def test_a_run_goes_on_with_another_number_of_processes(base: TrainingSpec, accumulated: Path, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def kill(row: Any) -> None:
        if row["step"] == 3:  # behind the checkpoint of step 2
            raise KilledError

    folder = tmp_path / "run"
    with pytest.raises(KilledError):
        train_drafter(replace(base, devices=2), folder, report=kill)
    assert (folder / "checkpoints").exists()
    assert not (folder / "drafter.json").exists()
    train_drafter(base, folder)
    assert_same_run(accumulated, folder, 2e-5)  # two parts, and one


@pytest.mark.slow
def test_under_torchrun(base: TrainingSpec, tmp_path: Path) -> None:
    arguments = [
        "train",
        "--target",
        base.target,
        "--out",
        str(tmp_path / "run"),
        "--json",
        str(tmp_path / "rows.json"),
    ]
    shown = ("reuse", "prompts", "new_tokens", "answers", "depths", "length", "steps", "batch", "checkpoint_every")
    for name in (*shown, "device"):
        arguments += [f"--{name.replace('_', '-')}", str(getattr(base, name))]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, "-m", "draftgauge", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained") == 1
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert row["steps"] == STEPS


def test_what_processes_say_and_return() -> None:
    heard: list[str] = []
    found = launch(3, parallel_work.tell, ("process",), lambda kind, content: heard.append(f"{kind} {content[0]}"))
    assert found == "process 0 of 3"
    assert sorted(heard) == [f"said process {rank} of 3" for rank in range(3)]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("refused", DraftgaugeError, "lower the learning rate"),
        ("killed", DraftgaugeError, "process of device 1 was killed"),
        ("bug", RuntimeError, "process 1: (.|\n)*ZeroDivisionError: a bug"),
    ],
)
def test_one_that_fails_ends_all(how: str, error: type[Exception], words: str) -> None:
    first: list[int] = []
    with pytest.raises(error, match=words):
        launch(2, parallel_work.fail, (how,), lambda kind, content: first.append(content[0]))
    with pytest.raises(ProcessLookupError):
        os.kill(first[0], 0)


STARTER = """
import parallel_work
from draftgauge.training.launch import launch
launch(1, parallel_work.fail, ("bug",), lambda kind, content: print(content[0], flush=True))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes from /proc")
def test_who_started_them_is_killed_and_they_end() -> None:
    path = os.pathsep.join([str(Path(parallel_work.__file__).parent), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-c", STARTER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as starter:
        assert starter.stdout is not None
        stat = Path(f"/proc/{int(starter.stdout.readline())}/stat")
        assert stat.exists()
        starter.kill()
    deadline = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it goes on alone"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"devices": 3, "batch": 4}, "4 conversations cannot be split evenly among 3 devices"),
        ({"devices": 2, "accumulation": 4, "batch": 4}, "devices of 4 parts each: ask for a batch that 8 divides"),
        ({"devices": 9, "batch": 9}, r"9 devices are asked for, and this machine has 4 cores \(cpu\)"),
        ({"devices": 2, "device": "cuda"}, "device cuda is not there: torch sees 0"),
        ({"device": "cuda:3"}, "device cuda:3 is not there"),
        ({"device": "tape"}, "there is no device 'tape'"),
    ],
)
def test_devices_that_are_not_there_or_do_not_divide(
    base: TrainingSpec, tmp_path: Path, change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(DraftgaugeError, match=words):
        train_drafter(replace(base, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_gpu_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.numbered("cuda", 1) == torch.device("cuda:1")
    device.check_devices("cuda", 2)
    with pytest.raises(DraftgaugeError, match="name the kind alone"):
        device.check_devices("cuda:0", 2)


def test_what_torchrun_says(base: TrainingSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def environment(*values: object) -> None:
        for name, value in zip(world.VARIABLES, values, strict=True):
            monkeypatch.setenv(name, str(value))

    assert world.world_here() == world.World()
    environment(5, 8, 1, 4)
    assert world.world_here() == world.World(5, 8, 1, 4)
    for wrong in ((8, 8, 0, 4), (1, 2, 1, 1), (0, 2, "first", 2)):
        environment(*wrong)
        with pytest.raises(DraftgaugeError, match="torchrun"):
            world.world_here()
    environment(0, 2, 0, 2)
    with pytest.raises(DraftgaugeError, match="2 processes were started already"):
        train_drafter(replace(base, devices=2), tmp_path / "run")
