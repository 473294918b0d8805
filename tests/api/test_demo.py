"""The whole path on a tiny pair: folders, rows and report of the demo; benches that notice changed inputs."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import succeeds
from draftgauge.api.baselines import transformers_arms
from draftgauge.api.bench import bench
from draftgauge.api.demo import demo
from draftgauge.api.pair import load_pair
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.provenance import read_measurement
from draftgauge.core.signals import NO_SIGNALS
from draftgauge.policies.base import PolicyBase, Step
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.replaying.splits import prompt_keys, split_trace
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME
from draftgauge.traces.reader import read_trace
from tiny import save_tiny

TASKS = ("code", "math")


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    lines = [json.dumps({"prompt": f"{task} number {n}", "task": task}) for task in TASKS for n in range(2)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    target = save_tiny(tmp_path / "target", "qwen3", num_hidden_layers=2)
    return {
        "target": target,
        "draft": save_tiny(tmp_path / "draft", "qwen3", num_hidden_layers=1),
        "prompts": tmp_path / "prompts.jsonl",
    }


def recorded(inputs: dict[str, Any], out: Path) -> Path:
    profile(**inputs, out=out, gamma_max=4, max_new_tokens=10, cost_seconds=0, device="cpu")
    return out


def test_demo_gives_modelled_and_live_figures(inputs: dict[str, Path], tmp_path: Path) -> None:
    pieces: list[str] = []
    told: list[str] = []
    rows = demo(
        tmp_path / "demo",
        compression=("uncompressed", "bf16"),
        target=str(inputs["target"]),
        draft=str(inputs["draft"]),
        prompts=inputs["prompts"],
        per_task=1,
        max_new_tokens=10,
        gamma_max=4,
        rounds=1,
        cost_seconds=0,
        seconds=3600,  # however slow the machine, nothing is cut short
        on_text=lambda piece, origin: pieces.append(piece),
        on_rows=lambda name, found: told.append(name),
    )
    assert told == ["first", "verdict", "uncompressed", "verdict", "bf16"]
    assert "".join(pieces)
    assert (tmp_path / "demo" / "report.html").read_text().lower().startswith("<!doctype html>")
    assert {row["task"] for row in rows} == {*TASKS, "all"}
    assert sum(bool(row["verdict"]) for row in rows) == 2  # one a compression
    for row in rows:
        if row["compression"] == "uncompressed":
            assert row["mismatches"] == 0
            assert row["tokens_per_step"] == pytest.approx(row["modelled_tokens_per_step"])


def test_what_a_short_time_does_not_reach_is_left_out(inputs: dict[str, Path], tmp_path: Path) -> None:
    models = [f"--{name}={inputs[name]}" for name in ("target", "draft", "prompts")]
    lengths = ["--gamma-max=2", "--max-new-tokens=4"]
    out = tmp_path / "demo"
    arguments = ["demo", f"--out={out}", "--compression=uncompressed,bf16", *models, *lengths]
    result = succeeds(*arguments, "--seconds=1", f"--json={tmp_path / 'demo.json'}")
    assert "Target bf16: no time left." in result.stdout
    assert "Run the same command with a larger --seconds to add bf16." in result.stdout
    rows = read_measurement(tmp_path / "demo.json").rows
    assert {row["compression"] for row in rows} == {"uncompressed"}
    assert (out / "report.html").is_file()


def test_bench_refuses_what_was_not_recorded(inputs: dict[str, Path], tmp_path: Path) -> None:
    run = recorded(inputs, tmp_path / "run")
    with pytest.raises(DraftgaugeError, match="rounds"):
        bench(run, ["no-draft"], rounds=0, device="cpu")
    inputs["prompts"].write_text(json.dumps({"prompt": "another", "task": "code"}))
    with pytest.raises(TraceError, match="has changed since"):
        bench(run, ["no-draft"], device="cpu")
    save_tiny(inputs["draft"], "qwen3", num_hidden_layers=1, seed=5)
    with pytest.raises(TraceError, match="not the model that this trace was recorded with"):
        bench(run, ["no-draft"], device="cpu")


def test_bench_decodes_prompts_that_a_policy_was_not_fitted_on(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FITTED, "two", (lambda parameters, gamma_max, costs: FixedLength(2), ()))
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
    with pytest.warns(UserWarning, match=r"was fitted on \d of the 5 prompts"):
        assert {row["prompts"] for row in bench(few, **asked)} == {5}
    inputs["prompts"].write_text("\n".join(json.dumps({"prompt": "number", "task": task}) for task in "ab"))
    with pytest.raises(TraceError, match="holds none of these prompts"):
        bench(recorded(inputs | {"limit": 1}, tmp_path / "one"), ["no-draft"], tasks="b", device="cpu")


def test_transformers_baselines_decode_the_same_tokens(inputs: dict[str, Path]) -> None:
    pair = load_pair(inputs["target"], inputs["draft"], device="cpu")
    arms = transformers_arms(pair, 12)
    outputs = [arm.decode([5, 6, 7]) for arm in arms]
    assert [arm.name for arm in arms] == [
        "transformers-generate",
        "transformers-prompt-lookup",
        "transformers-assisted",
        "transformers-assisted-constant:5",
    ]
    assert all(run.tokens == outputs[0].tokens for run in outputs)
    assert all(0 < run.timed < len(run.tokens) for run in outputs)
    assert pair.draft is not None
    assert pair.draft.module.generation_config.num_assistant_tokens in (None, 20)


class Growing(PolicyBase):
    """One that learns across outputs: it drafts the more, the more outputs it has seen."""

    reads = NO_SIGNALS

    def __init__(self) -> None:
        self.outputs = 0

    def reset(self) -> None:
        self.outputs += 1

    def limit(self) -> int:
        return min(self.outputs, 3)

    def observe(self, step: Step) -> None:
        pass


def test_a_policy_of_ones_own_begins_anew_with_every_replay(inputs: dict[str, Path], tmp_path: Path) -> None:
    run, policy = recorded(inputs, tmp_path / "run"), Growing()
    costs = CostCurve.load(run / COSTS_NAME)  # of a few milliseconds: drafting may have been measured as free
    drafting = tuple(0.1 * costs.verify[0][0] * tokens for tokens in range(costs.gamma_max + 1))
    replace(costs, draft=(drafting,) * len(costs.contexts)).save(run / COSTS_NAME)
    rows = [row for _ in range(2) for row in replay(run, objects={"growing": policy})]
    drafted = [row["drafted_per_step"] for row in rows if (row["policy"], row["task"]) == ("growing", "all")]
    assert len(drafted) == 2
    assert len(set(drafted)) == 1
