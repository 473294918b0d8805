"""Diagnosing trained drafters, from the API and from the command line."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import refusal, rows_of, succeeds
from draftgauge.api.diagnose import diagnose
from draftgauge.core.errors import DraftgaugeError
from draftgauge.drafters.reuse.persistence import DESCRIPTION, DRAFTER, read_description
from draftgauge.training.reuse.train import train_drafter
from row_keys import check_keys
from small_trainings import small_training

RUNS = {"kv-0": ("kv", 0), "kv-1": ("kv", 1), "hybrid": ("hybrid", 0)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a target, prompts and drafters trained for a moment."""
    place = tmp_path_factory.mktemp("diagnose")
    request = small_training(place, length=40, depths=2, log_every=1)
    for name, (design, seed) in RUNS.items():
        train_drafter(replace(request, reuse=design, seed=seed), place / name)
    return place


def test_rows(folder: Path, tmp_path: Path) -> None:
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


def test_what_cannot_be(folder: Path) -> None:
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
