"""The published tables: read whole, runs recovered, and every kind of wrong row named with its file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.studies.speckv.importer import STEP_COLUMNS, read_records
from speckv_records import PUBLISHED, made_up_rows, write_rows, write_tables

Rows = list[dict[str, Any]]
needs_records = pytest.mark.skipif(not PUBLISHED.is_dir(), reason=f"the published records are not at {PUBLISHED}")


@pytest.fixture(scope="module")
def tables() -> tuple[Rows, Rows]:
    return made_up_rows()


def changed(rows: Rows, index: int, **cells: object) -> Rows:
    return [row | cells if number == index else row for number, row in enumerate(rows)]


def test_reads_back_what_was_written(tables: tuple[Rows, Rows], tmp_path: Path) -> None:
    steps, experiments = tables
    records = read_records(*write_tables(tmp_path, steps, experiments))
    assert records.steps.tokens.tolist() == [row["tokens_produced"] for row in steps]
    assert records.steps.signals[7].tolist() == [steps[7][column] for column in STEP_COLUMNS[-4:]]
    assert records.runs.steps.tolist() == [row["num_steps"] for row in experiments]
    assert records.runs.tokens.tolist() == [row["num_tokens"] for row in experiments]
    assert records.prompts == 8
    names = [row["prompt"] for row in experiments]
    assert [names.index(name) for name in names] == [records.runs.prompt.tolist().index(p) for p in records.runs.prompt]


def test_what_a_step_drafted_is_recovered_from_its_rate(tables: tuple[Rows, Rows], tmp_path: Path) -> None:
    steps, experiments = tables
    drafted = read_records(*write_tables(tmp_path, steps, experiments)).steps.drafted
    produced = 0
    for row, length in zip(steps, drafted.tolist(), strict=True):
        produced = 0 if row["step"] == 0 else produced
        assert length == min(row["gamma"], 80 - produced)
        produced += row["tokens_produced"]
    assert (drafted < [row["gamma"] for row in steps]).any()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"compression": "int3"}, "unknown compression 'int3'; known are fp16, int8, nf4"),
        ({"task": "poetry"}, "unknown task 'poetry'"),
        ({"gamma": 5}, "gamma must be one of 2, 4, 6, 8, not 5"),
        ({"gamma": "two"}, "gamma must be a whole number"),
        ({"acceptance_rate": 0.77}, "no draft length up to gamma 2 explains an acceptance_rate of 0.77"),
        ({"acceptance_rate": "nan"}, "acceptance_rate must be from 0 to 1"),
        ({"accepted": 3}, "3 accepted of a draft of at most 2"),
        ({"tokens_produced": 9}, "tokens_produced must be accepted + 1"),
        ({"step": 3}, "step 3 where step 1 or a new run's step 0 must come"),
        ({"mean_draft_entropy": -0.1}, "mean_draft_entropy must be at least 0"),
        ({"min_draft_confidence": 1.0, "mean_draft_confidence": 0.5}, "mean confidence fall below the minimum"),
        ({"max_draft_entropy": ""}, "max_draft_entropy must be a number"),
        ({"accepted": 1, "tokens_produced": 2, "acceptance_rate": 1.0}, "which only the end of a run explains"),
    ],
)
def test_a_wrong_step_is_named(
    tables: tuple[Rows, Rows], tmp_path: Path, cells: dict[str, object], message: str
) -> None:
    steps, experiments = tables
    files = write_tables(tmp_path, changed(steps, 1, **cells), experiments)
    with pytest.raises(DraftgaugeError, match=r"steps\.csv, line 3: ") as caught:
        read_records(*files)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"compression": "nf4"}, "compression, gamma or task is not that of the run that begins at line"),
        ({"num_steps": 1}, "num_steps and num_tokens must be"),
        ({"mean_acceptance_rate": 0.001}, "mean_acceptance_rate is not"),
        ({"elapsed_sec": 0}, "elapsed_sec must be at least"),
        ({"prompt": "math, prompt 0"}, "another task"),
        ({"prompt": "chat, prompt 0"}, "this prompt has an earlier run of the same compression"),
    ],
)
def test_a_wrong_experiment_is_named(
    tables: tuple[Rows, Rows], tmp_path: Path, cells: dict[str, object], message: str
) -> None:
    steps, experiments = tables
    files = write_tables(tmp_path, steps, changed(experiments, 13, **cells))
    with pytest.raises(DraftgaugeError, match=r"experiments\.csv, line 15: ") as caught:
        read_records(*files)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text.replace("acceptance_rate,", "rate,", 1), "line 1: missing column acceptance_rate"),
        (
            lambda text: text.replace("\nfp16,2,code,1,", "\nfp16,2,code,", 1),
            "line 3: 10 cells, but the heading has 11 columns",
        ),
        (lambda text: text.splitlines()[0] + "\n", "a heading but no rows"),
        (lambda text: "", "missing columns compression, gamma"),
        (lambda text: text + '"', "not CSV"),
    ],
)
def test_a_spoilt_file_is_refused(
    tables: tuple[Rows, Rows], tmp_path: Path, spoil: Callable[[str], str], message: str
) -> None:
    path = write_rows(tmp_path / "steps.csv", tables[0], STEP_COLUMNS)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(DraftgaugeError, match=r"steps\.csv") as caught:
        read_records(path, tmp_path / "experiments.csv")
    assert message in str(caught.value)


def test_what_is_missing_from_the_grid_is_named(tables: tuple[Rows, Rows], tmp_path: Path) -> None:
    def read_where(keeps: Callable[[dict[str, Any]], bool]) -> None:
        read_records(*write_tables(tmp_path, *([row for row in rows if keeps(row)] for rows in tables)))

    with pytest.raises(DraftgaugeError, match="nf4, summarization: no steps at gamma 6"):
        read_where(lambda row: (row["compression"], row["task"], row["gamma"]) != ("nf4", "summarization", 6))
    with pytest.raises(DraftgaugeError, match="fp16, math: no steps at gamma 2, 4, 6, 8"):
        read_where(lambda row: row["task"] == "code")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DraftgaugeError, match="cannot read"):
        read_records(tmp_path / "none.csv", tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DraftgaugeError, match="UTF-8"):
        read_records(tmp_path / "binary.csv", tmp_path / "none.csv")


@needs_records
def test_the_published_records() -> None:
    records = read_records(PUBLISHED / "phase2_step_results.csv", PUBLISHED / "phase2_experiment_results.csv")
    steps, runs = records.steps, records.runs
    assert (len(steps.gamma), len(runs.gamma), records.prompts) == (5112, 240, 20)
    assert ((steps.drafted < steps.gamma) & (steps.accepted > 0)).sum() == 165  # rates over a run's shorter last drafts
    assert set(runs.tokens.tolist()) == {80, 81}
    for compression in range(3):
        assert (np.bincount(runs.prompt[runs.compression == compression]) == 4).all()
