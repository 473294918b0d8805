"""``python -m recipes.reference_pair train`` from nothing to a pair that loads, generates and is evaluated."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from draftgauge.models.folder import bundled_questions
from recipes.reference_pair.__main__ import main
from recipes.reference_pair.data import PROMPTS_PER_SPLIT, save_questions
from recipes.reference_pair.recipe import SEALED, SEALED_NAME

ROOT = Path(__file__).resolve().parents[3]
SCALE = os.environ.get("DRAFTGAUGE_RECIPE_SCALE", "0.0005")


def run(*arguments: str | Path) -> str:
    """What a command prints; nothing is compiled, which would take longer than so short a training."""
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    command = [sys.executable, "-m", "recipes.reference_pair", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small relative of the bundled pair, trained by the command."""
    folder = tmp_path_factory.mktemp("reference")
    run("train", "--out", folder / "pair", "--work", folder / "work", "--scale", SCALE)
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
    assert main(["evaluate", "--folder", str(few), "--max-new-tokens=4", "--gamma-max=4", f"--json={rows_file}"]) == 0
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "--folder", "{folder}"], "prompts/test.jsonl is missing"),
        (["evaluate", "--write-card", "--gamma-max", "4"], "--gamma-max 8"),
        (["train", "--out", "{folder}/pair", "--drafts-only"], "--start FOLDER"),
        (["train", "--out", "{folder}/pair", "--start", "{folder}"], "target/config.json is missing"),
        (["train", "--out", "{folder}/pair", "--scale", "-1"], "--scale must be above 0, not -1"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(folder=tmp_path) for argument in arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_questions_that_ship_are_the_first_that_the_recipe_draws(tmp_path: Path) -> None:
    save_questions(tmp_path / "few.xz", 8)
    few = [json.loads(line)["messages"] for line in lzma.decompress((tmp_path / "few.xz").read_bytes()).splitlines()]
    assert few == bundled_questions()[: len(few)]
