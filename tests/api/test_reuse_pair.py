"""A trained drafter named by its folder, through generate, profile, replay and bench, on its own target only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.api.bench import bench
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.core.errors import ModelError, TraceError
from draftgauge.drafters.reuse.live import ReuseDrafter, ReuseSource
from draftgauge.models.loading import load_model
from draftgauge.pair.loading import load_pair, load_pair_of
from draftgauge.requests import DeviceSpec, PairSpec
from draftgauge.traces.run import Manifest, read_trace
from reuse_nets import saved_drafter
from small_profiles import record
from tiny import save_tiny

ON_CPU = PairSpec(machine=DeviceSpec(device="cpu"))
SMALL: dict[str, Any] = {"device": "cpu", "max_new_tokens": 12}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    target = save_tiny(folder / "target", num_hidden_layers=4)
    lines = [json.dumps({"prompt": f"prompt number {n}", "task": "a"}) for n in range(3)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    module = load_model(target, device="cpu").module
    drafters = {design: folder / design for design in ("hybrid", "kv", "control")}
    for design, place in drafters.items():
        saved_drafter(place, module, design, target_source=str(target))
    return {
        "target": target,
        "prompts": folder / "prompts.jsonl",
        "other": save_tiny(folder / "other", seed=1, num_hidden_layers=4),
    } | drafters


def given(models: dict[str, Path], drafter: object) -> dict[str, Any]:
    return {"target": models["target"], "prompts": models["prompts"], "drafter": drafter}


@pytest.fixture(scope="module")
def recorded(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "trace"
    record(given(models, models["hybrid"]), out, **SMALL)
    return out


def test_a_plan_counts_the_weights_of_the_drafter(models: dict[str, Path], tmp_path: Path) -> None:
    asked: dict[str, Any] = {"target": models["target"], "prompts": models["prompts"], "out": tmp_path / "run"}
    alone, drafting = (
        profile(drafter=drafter, plan=True, **asked, **SMALL)[0] for drafter in ("prompt_lookup", models["kv"])
    )
    files = sum(path.stat().st_size for path in models["kv"].glob("*.safetensors")) / 2**30
    for key in ("weights_gib", "memory_gib"):
        assert drafting[key] - alone[key] == pytest.approx(files)


@pytest.mark.parametrize("design", ["hybrid", "kv", "control"])
def test_generating_is_lossless(models: dict[str, Path], design: str) -> None:
    pair = load_pair(models["target"], drafter=models[design], device="cpu")
    assert (pair.draft_source.name, pair.draft) == ("reuse", None)
    assert isinstance(pair.drafter(), ReuseDrafter)
    plain = generate(pair, "hello", "plain", max_new_tokens=20)
    how = generate(pair, "hello", "fixed:3", max_new_tokens=20)
    assert how.text == plain.text
    assert sum(step.drafted for step in how.steps) > 20
    options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 4, "cost_seconds": 0}  # at the default policy
    assert generate(pair, "hello", **options).text == generate(pair, "hello", **options).text


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_a_drafter_follows_its_target_into_any_compression(models: dict[str, Path], compression: str) -> None:
    pair = load_pair(models["target"], drafter=models["hybrid"], compression=compression, device="cpu")
    assert isinstance(pair.draft_source, ReuseSource)
    assert {parameter.dtype for parameter in pair.draft_source.net.parameters()} == {pair.target.spec.dtype}
    how = generate(pair, "hello", "fixed:3", max_new_tokens=12)
    assert len(how.tokens) == 12
    assert sum(step.drafted for step in how.steps) > 10


def test_a_recorded_run_names_its_drafter_and_can_be_replayed(models: dict[str, Path], recorded: Path) -> None:
    manifest, trace = Manifest.load(recorded), read_trace(recorded)
    assert manifest.complete
    assert manifest.drafter == "reuse"
    assert manifest.draft is not None
    assert (manifest.draft.source, manifest.draft.family) == (str(models["hybrid"]), "reuse-hybrid")
    assert (trace.drafted[:5] == 3).all()
    assert np.isfinite(trace.confidence[:5]).all()
    assert any(row["policy"] == "fixed:2" for row in replay(recorded, ["fixed"]))
    assert load_pair_of(manifest, ON_CPU).draft_source.name == "reuse"


def test_another_drafter_in_its_place_is_noticed(models: dict[str, Path], recorded: Path, tmp_path: Path) -> None:
    target, place = models["target"], tmp_path / "drafter"
    shutil.copytree(models["kv"], place)
    record(given(models, place), tmp_path / "run", limit=1, **SMALL)
    shutil.rmtree(place)
    saved_drafter(place, load_model(target, device="cpu").module, "kv", seed=1)
    with pytest.raises(TraceError, match=r"the draft at .* is not the model"):
        load_pair_of(Manifest.load(tmp_path / "run"), ON_CPU)


def test_benching_with_and_without_a_run(models: dict[str, Path], recorded: Path) -> None:
    options: dict[str, Any] = {"rounds": 1, "device": "cpu", "limit": 2}
    rows = bench(recorded, ["fixed:2"], **options)
    rows += bench(recorded, ["fixed:2"], drafter=models["control"], **options)
    rows += bench(recorded, ["fixed:2"], drafter="prompt_lookup", **options)
    rows += bench(policies=["fixed:2"], drafter=models["kv"], prompts=models["prompts"], max_new_tokens=12, **options)
    assert sum(row["policy"] == "fixed:2" and row["task"] == "all" for row in rows) == 4
    # On a recorded run its best fixed length runs too; here that is not to speculate.
    baselines = {"plain", "transformers-generate", "transformers-prompt-lookup"}
    assert {row["policy"] for row in rows} == {*baselines, "fixed:2", "no-draft"}
    assert {row["gain"] for row in rows if row["over"] == row["policy"]} == {0.0}
    # Gains are over that; where nothing is recorded of the drafter, over the fastest fixed length of the bench.
    every = [(row["over"], row["over_from"]) for row in rows if row["task"] == "all" and row["policy"] == "fixed:2"]
    assert every == [("no-draft", "same prompts"), *[("fixed:2", "same runs")] * 3]
    assert all(row["mismatches"] == 0 for row in rows)


def test_a_target_of_the_same_network_with_other_weights_is_warned_of(models: dict[str, Path]) -> None:
    pair = {"target": models["other"], "drafter": models["hybrid"], "prompts": models["prompts"], "device": "cpu"}
    with pytest.warns(UserWarning, match="trained on other weights than this target's, those of .*target: outputs"):
        rows = bench(policies=["fixed:3"], max_new_tokens=12, rounds=1, over="plain", **pair)
    assert [row["mismatches"] for row in rows if row["policy"] == "fixed:3"] == [0, 0]


def test_what_is_no_drafter_for_this_target_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    wide = save_tiny(tmp_path / "wide", num_hidden_layers=4, hidden_size=96)
    with pytest.raises(ModelError, match=r"trained for another target, .*: its hidden size is 64, this one's 96"):
        load_pair(wide, drafter=models["hybrid"], device="cpu")
