"""Trained drafters: evaluated, diagnosed, and named by their folder in every verb, on their own target only."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import draftgauge, refusal, rows_of, succeeds
from draftgauge.api import evaluate as module
from draftgauge.api.bench import bench
from draftgauge.api.diagnose import diagnose
from draftgauge.api.evaluate import evaluate
from draftgauge.api.generate import generate
from draftgauge.api.profile import profile
from draftgauge.api.replay import replay
from draftgauge.core.errors import DraftgaugeError, ModelError, TraceError
from draftgauge.drafters.reuse.live import ReuseDrafter, ReuseSource
from draftgauge.drafters.reuse.persistence import DESCRIPTION, DRAFTER, read_description
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model
from draftgauge.pair.loading import load_pair, load_pair_of
from draftgauge.requests import DeviceSpec, PairSpec
from draftgauge.traces.run import Manifest, read_trace
from draftgauge.training.reuse.train import train_drafter
from reuse_nets import saved_drafter
from row_keys import check_keys
from small_profiles import record
from small_trainings import small_training
from tiny import save_tiny

RUNS = {"kv-0": ("kv", 0), "kv-1": ("kv", 1), "hybrid": ("hybrid", 0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a target, prompts and drafters trained for a moment."""
    place = tmp_path_factory.mktemp("trained")
    train_drafter(small_training(place, reuse="hidden", length=40), place / "drafter")
    request = small_training(place, length=40, depths=2, log_every=1)
    for name, (design, seed) in RUNS.items():
        train_drafter(replace(request, reuse=design, seed=seed), place / name)
    return place


@pytest.mark.parametrize("engine", ["static", "modules"])  # lean is what the others run
def test_rows(folder: Path, engine: str) -> None:
    prompts = folder / "prompts.jsonl"
    rows = evaluate(folder / "drafter", prompts=prompts, max_new_tokens=8, depths=4, engine=engine)
    depths = [row for row in rows if "depth" in row]
    assert [row["depth"] for row in depths] == [1, 2, 3, 4]
    check_keys(rows, "depth", "alpha", "tokens_per_second", "ratio_to_plain")
    assert all({"alpha", "alpha_low", "alpha_high"} <= row.keys() for row in depths)
    assert all(row["survival"] <= row["agreement"] for row in depths)
    assert depths[0]["survival"] == depths[0]["agreement"] == depths[0]["alpha"]
    (whole,) = (row for row in rows if "mat" in row)
    assert {"mat", "retention", "live_mat", "tree_mat"} <= whole.keys()
    assert whole["tokens_per_second"] > 0
    assert whole["texts"] == 3
    assert whole["live_mismatched_prompts"] == 0
    assert {row["task"] for row in rows if "task" in row} == {"o", "t"}


def test_command_line(folder: Path, tmp_path: Path) -> None:
    command = ("evaluate", folder / "drafter", "--prompts", folder / "prompts.jsonl", "--max-new-tokens", 8)
    succeeds(*command, "--per-task", 1, "--json", tmp_path / "rows.json")
    rows = rows_of(tmp_path / "rows.json")
    assert sum("alpha" in row for row in rows) == 3
    assert next(row for row in rows if "mat" in row)["texts"] == 2


def test_the_target_is_held_as_in_training_unless_asked_otherwise(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = tmp_path / "drafter"
    shutil.copytree(folder / "drafter", drafter)
    description = DRAFTER.read(drafter / DESCRIPTION)
    description["extra"]["request"]["compression"] = "bf16"
    DRAFTER.write(drafter / DESCRIPTION, description)
    held: list[str] = []

    def load(source: str, compression: str, *rest: Any) -> CachedModel:
        held.append(compression)
        return load_model(source, compression, *rest)

    monkeypatch.setattr(module, "load_model", load)
    options: dict[str, Any] = {"prompts": folder / "prompts.jsonl", "max_new_tokens": 4, "limit": 1}
    evaluate(drafter, **options)
    evaluate(drafter, compression="none", **options)
    assert held == ["bf16", "uncompressed"]


def test_no_option_is_passed_over(folder: Path) -> None:
    """A target spread over devices shows its states on each of them, and a drafter has no draft model."""
    for verb in ("evaluate", "diagnose"):
        command = [verb, str(folder / "drafter"), "--prompts", str(folder / "prompts.jsonl")]
        for option in ("--device-map", "--draft-device"):
            assert option in draftgauge([*command, option, "auto"]).stderr
        assert "there is no model folder /nowhere" in draftgauge([*command, "--tokenizer", "/nowhere"]).stderr


def test_the_prompts_of_a_training_split_are_not_judged_on(folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    splits = ["train", "train", "test", "validation"]
    prompts.write_text("\n".join(json.dumps({"prompt": f"{n} is", "split": s}) for n, s in enumerate(splits)))

    def texts(**options: Any) -> int:
        rows = evaluate(folder / "drafter", prompts=prompts, max_new_tokens=4, **options)
        return next(row["texts"] for row in rows if "texts" in row)

    assert [texts(), texts(limit=1), texts(split="train")] == [1, 1, 2]


def test_prompts_that_the_drafter_learned_from_are_warned_of(
    folder: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    evaluate(folder / "drafter", prompts=folder / "prompts.jsonl", max_new_tokens=4, limit=1)
    assert "has learned from prompts of" in str(recwarn.pop(UserWarning).message)
    shutil.copy(folder / "prompts.jsonl", tmp_path / "others.jsonl")
    evaluate(folder / "drafter", prompts=tmp_path / "others.jsonl", max_new_tokens=4, limit=1)
    assert not [each for each in recwarn if "learned from" in str(each.message)]


def test_diagnosis(folder: Path, tmp_path: Path) -> None:
    command = ["diagnose", *(str(folder / name) for name in RUNS), "--prompts", str(folder / "prompts.jsonl")]
    result = succeeds(*command, "--max-new-tokens", "8", "--json", str(tmp_path / "rows.json"))
    rows = rows_of(tmp_path / "rows.json")
    assert {(row["design"], row["seeds"]) for row in rows} == {("kv", 2), ("hybrid", 1)}  # the two seeds are pooled
    check_keys(rows, "depth")
    query = [row for row in rows if "query_kl" in row]
    assert {"design", "depth", "layer", "query_kl", "uniform_kl", "query_kl_low", "query_kl_high"} <= query[0].keys()
    assert len(query) == 2 * 2 * 3  # designs, depths, tapped layers
    probed = [row for row in rows if "gradient_share" in row]
    assert {"design", "group", "depth", "gradient_norm", "gradient_share"} <= probed[0].keys()
    assert {row["design"] for row in rows if "gate_open" in row} == {"hybrid"}
    assert {row["step"] for row in rows if "step" in row} == {1, 2}
    assert "Queries beside the target's own" in result.output


def test_what_cannot_be_diagnosed(folder: Path) -> None:
    with pytest.raises(DraftgaugeError, match="each once"):
        diagnose([folder / "kv-0", folder / "kv-0"])
    refusal("diagnose")
    with pytest.raises(DraftgaugeError, match="no output holds 9 drafted tokens with max_new_tokens 8"):
        diagnose([folder / "kv-0"], prompts=folder / "prompts.jsonl", depths=9, max_new_tokens=8)


def test_only_seeds_are_pooled(folder: Path, tmp_path: Path) -> None:
    """Not drafters that started from another one with those that did not, nor one training twice."""
    request = read_description(folder / "kv-0")["extra"]["request"]
    for name, warm in (("again", None), ("warm", str(folder / "kv-1"))):
        copy = tmp_path / name
        shutil.copytree(folder / "kv-0", copy)
        description = DRAFTER.read(copy / DESCRIPTION)
        description["extra"]["request"] = request | {"warm_start": warm}
        DRAFTER.write(copy / DESCRIPTION, description)
    options: dict[str, Any] = {"prompts": folder / "prompts.jsonl", "max_new_tokens": 8}
    with pytest.raises(DraftgaugeError, match="trained alike, with the same seed"):
        diagnose([folder / "kv-0", tmp_path / "again"], **options)
    rows = diagnose([folder / "kv-0", tmp_path / "warm"], **options)
    assert {(row["init"], row["seeds"]) for row in rows} == {("random", 1), ("warm", 1)}


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
