"""Evaluating a trained drafter, from the API and from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import draftgauge, rows_of, succeeds
from draftgauge.api import evaluate as module
from draftgauge.api.evaluate import evaluate
from draftgauge.drafters.reuse.persistence import DESCRIPTION, DRAFTER
from draftgauge.models.base import CachedModel
from draftgauge.models.loading import load_model
from draftgauge.training.reuse.train import train_drafter
from row_keys import check_keys
from small_trainings import small_training


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a target, prompts and a drafter trained for a moment."""
    place = tmp_path_factory.mktemp("evaluate")
    train_drafter(small_training(place, reuse="hidden", length=40), place / "drafter")
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
