"""``draftgauge replay`` on written traces: which prompts it judges on, what it warns of, what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import refusal, rows_of, succeeds
from draftgauge.policies.fitted import FITTED, FittedPolicy, save_fitted
from draftgauge.policies.fixed import FixedLength
from draftgauge.traces.run import Manifest
from draftgauge.traces.shards import read_parquet, write_parquet
from written_runs import GAMMA_MAX, write_run

KEYS = {"policy", "compression", "task", "split", "tokens_per_step", "tokens_per_second"}
KEYS |= {"gain", "gain_low", "gain_high", "captured"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 prompts, 8 of each split."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", 24)


@pytest.fixture
def fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FittedPolicy:
    """A kind of policy that is fitted to draft two tokens."""
    monkeypatch.setitem(FITTED, "two", (lambda *given: FixedLength(2), ()))
    return FittedPolicy("two", GAMMA_MAX, (), {}, trained_on=("code/p0", "math/p1", "chat/p2", "elsewhere/p8"))


def test_test_prompts_are_judged_on_where_there_are_training_ones(run: Path, tmp_path: Path) -> None:
    result = succeeds("replay", run, "-p", "fixed", "-p", "cumulative-confidence", "--json", tmp_path / "r.json")
    assert "warning" not in result.stderr
    rows = rows_of(tmp_path / "r.json")
    assert all(set(row) >= KEYS for row in rows)
    assert {row["task"] for row in rows} == {"code", "math", "chat", "summarization", "all"}
    pooled = {row["policy"]: row for row in rows if row["task"] == "all"}
    assert set(pooled) == {"no-draft", "fixed:1", "fixed:2", "fixed:3", "fixed:4", "cumulative-confidence", "hindsight"}
    assert {(row["split"], row["prompts"], row["best_fixed_from"]) for row in pooled.values()} == {("test", 8, "train")}
    best = pooled["hindsight"]["best_fixed_gamma"]
    assert pooled[f"fixed:{best}" if best else "no-draft"]["gain"] == 0
    assert pooled["hindsight"]["captured"] == pytest.approx(1)
    assert "Test prompts" in result.stdout


def test_all_prompts_on_demand(run: Path, tmp_path: Path) -> None:
    succeeds("replay", run, "--split", "all", "-p", "no-draft", "--json", tmp_path / "r.json")
    rows = [row for row in rows_of(tmp_path / "r.json") if row["task"] == "all"]
    assert {(row["split"], row["prompts"], row["best_fixed_from"]) for row in rows} == {("all", 24, "same prompts")}


def test_prompts_that_a_policy_was_fitted_on_are_counted(run: Path, tmp_path: Path, fitted: FittedPolicy) -> None:
    save_fitted(fitted, tmp_path / "two.json")
    unseen = succeeds("replay", run, "-p", tmp_path / "two.json")
    assert "warning" not in unseen.stderr
    seen = succeeds("replay", run, "-p", tmp_path / "two.json", "--split", "all")
    assert "two.json was fitted on 3 of the 24 prompts that it is evaluated on" in seen.message


def test_costs_of_another_device_are_pointed_out(tmp_path: Path) -> None:
    result = succeeds("replay", write_run(tmp_path / "run", 8, device="cuda"), "-p", "no-draft")
    assert "warning" in result.stderr
    assert "are of lean on cuda, its trace is of lean on cpu" in result.message


def refused(kept: Path, *arguments: object) -> str:
    """The message of a refusal that left an earlier result as it was."""
    said = refusal("replay", *arguments, "--json", kept)
    assert kept.read_text() == "precious"
    return said


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A result of an earlier command."""
    path = tmp_path / "r.json"
    path.write_text("precious")
    return path


def test_a_trace_without_a_column_is_refused(run: Path, tmp_path: Path, kept: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shard = tmp_path / "run" / "positions-00000.parquet"
    write_parquet(shard, read_parquet(shard).drop_columns(["margin"]))
    assert "margin" in refused(kept, tmp_path / "run", "-p", "cumulative-confidence")


@pytest.mark.parametrize("change", [{"gamma_max": 9}, {"policy": "three"}])
def test_a_policy_fitted_for_something_else_is_refused(
    run: Path, tmp_path: Path, kept: Path, fitted: FittedPolicy, change: dict[str, Any]
) -> None:
    save_fitted(replace(fitted, **change), tmp_path / "p.json")
    said = refused(kept, run, "-p", tmp_path / "p.json")
    assert ("gamma_max 9" if "gamma_max" in change else "'three'") in said


def test_too_few_test_prompts_say_what_to_do(tmp_path: Path, kept: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    shown = succeeds("replay", run, "-p", "no-draft").stdout
    assert shown.startswith("\nAll prompts")  # by themselves all are judged then
    said = refused(kept, run, "-p", "no-draft", "--split", "test")
    assert "4 of the 20 recorded prompts are test prompts, and it takes 8 or more: record more test prompts" in said
    assert "or take all of them together with --split all" in said


def test_a_policy_fitted_on_another_pair_is_named(run: Path, tmp_path: Path, fitted: FittedPolicy) -> None:
    manifest = Manifest.load(run)
    assert manifest.draft is not None
    own = {"target": manifest.target.fingerprint, "draft": manifest.draft.fingerprint}
    for name, pair in (("own", own), ("older", None), ("other", own | {"draft": "another"}), ("edited", "x")):
        provenance = {"target": "a-target", "draft": "a-draft"} | ({} if pair is None else {"pair": pair})
        save_fitted(replace(fitted, provenance=provenance), tmp_path / f"{name}.json")
        said = succeeds("replay", run, "-p", tmp_path / f"{name}.json", "--split", "all").message
        assert ("was fitted on another pair (a-target and a-draft)" in said) == (name in ("other", "edited"))


def test_where_rules_are_tuned_is_said(tmp_path: Path) -> None:
    few = write_run(tmp_path / "run", 4)
    everything = ("replay", few, "-p", "no-draft", "--split", "all")
    said = " ".join(succeeds(*everything, "--tune").stdout.split())
    assert "chosen on these prompts: " in said
    assert ", as are the parameters of tuned rules" in said
    assert "tuned rules" not in succeeds(*everything).stdout
