"""The whole path on a tiny pair: folders, rows and report of the demo; benches that notice changed inputs."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import succeeds
from draftgauge.api.bench import bench
from draftgauge.api.demo import demo
from draftgauge.api.profile import profile
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.provenance import read_measurement
from draftgauge.judging.splits import prompt_keys, split_trace
from draftgauge.models.device import torch_threads
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.run import read_trace
from small_profiles import save_models
from tiny import save_tiny

TASKS = ("even", "odd")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    return save_models(tmp_path, [""] * 4)


def recorded(inputs: dict[str, Any], out: Path) -> Path:
    profile(**inputs, out=out, gamma_max=4, max_new_tokens=10, cost_seconds=0, device="cpu")
    return out


def test_demo_gives_modelled_and_live_figures(inputs: dict[str, Path], tmp_path: Path) -> None:
    pieces: list[str] = []
    told: list[str] = []
    asked: dict[str, Any] = {"compression": ("uncompressed", "bf16"), "per_task": 1, "max_new_tokens": 10}
    asked |= {"gamma_max": 4, "rounds": 1, "cost_seconds": 0}
    asked |= {"seconds": 3600}  # however slow the machine, nothing is cut short
    asked |= {"on_text": lambda piece, origin: pieces.append(piece), "on_rows": lambda name, found: told.append(name)}
    rows = demo(tmp_path / "demo", **inputs, **asked)
    assert told == ["first", "verdict", "uncompressed", "verdict", "bf16"]
    assert "".join(pieces)
    assert (tmp_path / "demo" / "report.html").read_text().lower().startswith("<!doctype html>")
    assert {row["task"] for row in rows} == {*TASKS, "all"}
    assert sum(bool(row["verdict"]) for row in rows) == 2  # one a compression
    for row in rows:
        if row["compression"] == "uncompressed":
            assert row["mismatches"] == 0
            assert row["tokens_per_step"] == pytest.approx(row["modelled_tokens_per_step"])


def test_the_demo_gives_the_process_its_threads_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("draftgauge.api.demo._shown", lambda *given: [{"threads": torch.get_num_threads()}])
    with torch_threads(3):
        assert [demo(tmp_path)[0]["threads"], torch.get_num_threads()] == [1, 3]


def test_what_a_short_time_does_not_reach_is_left_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    models = [f"--{name}={inputs[name]}" for name in ("target", "drafter", "prompts")]
    lengths = ["--gamma-max=2", "--max-new-tokens=4"]
    out = tmp_path / "demo"
    arguments = ["demo", f"--out={out}", "--compression=uncompressed,bf16", *models, *lengths]
    result = succeeds(*arguments, "--seconds=1", "--cost-seconds=0", f"--json={tmp_path / 'demo.json'}")
    assert "Target bf16: no time left." in result.stdout
    assert "Run the same command with a larger --seconds to add bf16." in result.stdout
    rows = read_measurement(tmp_path / "demo.json").rows
    assert {row["compression"] for row in rows} == {"uncompressed"}
    assert (out / "report.html").is_file()


def test_bench_refuses_what_was_not_recorded(inputs: dict[str, Path], tmp_path: Path) -> None:
    run = recorded(inputs, tmp_path / "run")
    with pytest.raises(DraftgaugeError, match="rounds"):
        bench(run, ["no-draft"], rounds=0, device="cpu")
    save_tiny(inputs["drafter"], "qwen3", num_hidden_layers=1, seed=5)
    with pytest.raises(TraceError, match="not the model that this trace was recorded with"):
        bench(run, ["no-draft"], device="cpu")


def test_bench_decodes_prompts_that_a_policy_was_not_fitted_on(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FITTED, "two", (lambda *given: FixedLength(2), ()))
    inputs["prompts"].write_text("\n".join(json.dumps({"prompt": f"number {n}", "task": "a"}) for n in range(40)))
    run, few = recorded(inputs, tmp_path / "run"), recorded(inputs | {"limit": 5}, tmp_path / "few")
    trained_on = tuple(prompt_keys(split_trace(read_trace(run), "train")))
    save_fitted(FittedPolicy("two", 4, (), {}, trained_on=trained_on), tmp_path / "two.json")
    policies = (str(tmp_path / "two.json"),)
    asked: dict[str, Any] = {"policies": policies, "baselines": False, "rounds": 1, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "of . answers")
        assert {row["prompts"] for row in bench(run, **asked)} == {8}
        assert {row["prompts"] for row in bench(run, limit=3, **asked)} == {3}
        assert {row["prompts"] for row in bench(run, split="test", **(asked | {"policies": ("fixed:1",)}))} == {8}
    with pytest.warns(UserWarning, match=r"was fitted on \d of the 5 prompts"):
        assert {row["prompts"] for row in bench(few, **asked)} == {5}
    inputs["prompts"].write_text("\n".join(json.dumps({"prompt": "number", "task": task}) for task in "ab"))
    with pytest.raises(TraceError, match="holds no task 'b'"):
        bench(recorded(inputs | {"limit": 1}, tmp_path / "one"), ["no-draft"], tasks="b", device="cpu")
