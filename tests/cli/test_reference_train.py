"""``draftgauge reference train`` from nothing to a pair that loads, generates and is evaluated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftgauge.training.reference.recipe import SEALED_NAME

SCALE = 0.001


def run(*arguments: str | Path) -> str:
    """What a command prints; nothing is compiled, which would take longer than so short a training."""
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, "-m", "draftgauge", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_a_small_relative_of_the_bundled_pair_is_trained_and_evaluated(tmp_path: Path) -> None:
    out, work = tmp_path / "pair", tmp_path / "work"
    run("reference", "train", "--out", out, "--work", work, "--scale", str(SCALE))
    record = json.loads((out / "training.json").read_text())
    assert record["target_tokens"] > 0
    assert record["target_loss"] < 8.4  # a guess among 4,096 tokens costs 8.32 nats
    assert (out / SEALED_NAME).exists()

    rows_file = tmp_path / "rows.json"
    run("reference", "evaluate", "--folder", out, "--max-new-tokens", "4", "--json", rows_file)
    rows = json.loads(rows_file.read_text())["rows"]
    assert {row["task"] for row in rows if "right" in row} == {"code", "math", "chat", "summarization", "all"}
    assert [row["layer"] for row in rows if "rms" in row] == list(range(9))


def test_going_on_from_a_folder_without_a_pair_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "draftgauge", "reference", "train", "--out", str(tmp_path / "pair")]
    done = subprocess.run([*command, "--start", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "target/config.json is missing" in done.stderr
