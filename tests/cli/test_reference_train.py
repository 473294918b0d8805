"""``draftgauge reference train`` from nothing to a pair that loads, generates and is evaluated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from command_line import draftgauge
from draftgauge.training.reference.data import PROMPTS_PER_SPLIT
from draftgauge.training.reference.recipe import SEALED, SEALED_NAME

SCALE = os.environ.get("DRAFTGAUGE_RECIPE_SCALE", "0.0005")
"""Of the recipe; ``make test-recipe`` takes 0.004, which needs minutes."""


def run(*arguments: str | Path) -> str:
    """What a command prints; nothing is compiled, which would take longer than so short a training."""
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, "-m", "draftgauge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small relative of the bundled pair, trained by the command."""
    folder = tmp_path_factory.mktemp("reference")
    run("reference", "train", "--out", folder / "pair", "--work", folder / "work", "--scale", SCALE)
    return folder / "pair"


def with_few_prompts(pair: Path, folder: Path) -> Path:
    """The pair in another folder, with three test prompts of each task."""
    for part in ("target", "draft", "draft-small"):
        (folder / part).symlink_to(pair / part)
    lines = (pair / "prompts" / "test.jsonl").read_text().splitlines(keepends=True)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "test.jsonl").write_text(
        "".join(line for n, line in enumerate(lines) if n % PROMPTS_PER_SPLIT["test"] < 3)
    )
    return folder


@pytest.mark.slow
def test_a_small_relative_of_the_bundled_pair_is_trained_and_evaluated(pair: Path, tmp_path: Path) -> None:
    record = json.loads((pair / "training.json").read_text())
    assert record["target_tokens"] > 0
    assert record["target_loss"] < 8.25  # it learns: a guess among 4,096 tokens costs 8.32 nats

    rows_file = tmp_path / "rows.json"
    few = with_few_prompts(pair, tmp_path)
    evaluated = draftgauge(
        ["reference", "evaluate", "--folder", str(few), "--max-new-tokens=4", "--gamma-max=4", f"--json={rows_file}"]
    )
    assert evaluated.exit_code == 0, evaluated.stderr
    rows = json.loads(rows_file.read_text())["rows"]
    assert {row["task"] for row in rows if "right" in row} == {"code", "math", "chat", "summarization", "all"}
    assert [row["layer"] for row in rows if "rms" in row] == list(range(9))
    assert all(row["acceptance_depth_8"] is None for row in rows if "acceptance_depth_8" in row)  # beyond gamma_max


@pytest.mark.slow
def test_its_prompts_have_templates_and_lengths_as_stated(pair: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(pair / "target")
    files = {split: pair / "prompts" / f"{split}.jsonl" for split in PROMPTS_PER_SPLIT if split != SEALED}
    files[SEALED] = pair / SEALED_NAME
    chosen = {split: [json.loads(line) for line in path.read_text().splitlines()] for split, path in files.items()}
    assert {split: len(rows) for split, rows in chosen.items()} == {s: 4 * n for s, n in PROMPTS_PER_SPLIT.items()}
    templates = [row["template"] for rows in chosen.values() for row in rows]
    assert len(set(templates)) == len(templates)
    for rows in chosen.values():
        for row in rows:
            assert 40 <= len(tokenizer(row["reference"]).input_ids) <= 200


def test_a_folder_without_a_pair_is_not_evaluated(tmp_path: Path) -> None:
    result = draftgauge(["reference", "evaluate", "--folder", str(tmp_path)])
    assert result.exit_code == 2
    assert "prompts/test.jsonl is missing" in " ".join(result.stderr.split())


def test_drafts_alone_need_a_target(tmp_path: Path) -> None:
    result = draftgauge(["reference", "train", "--out", str(tmp_path / "pair"), "--drafts-only"])
    assert result.exit_code == 2
    assert "--start FOLDER" in result.stderr


def test_going_on_from_a_folder_without_a_pair_is_refused(tmp_path: Path) -> None:
    result = draftgauge(["reference", "train", "--out", str(tmp_path / "pair"), "--start", str(tmp_path)])
    assert result.exit_code == 2
    assert "target/config.json is missing" in result.stderr
