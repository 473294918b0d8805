"""``draftgauge study speckv``: what it writes, and that it writes nothing where something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import refusal, rows_of, succeeds
from draftgauge.studies.speckv import predictors
from speckv_records import made_up_rows, write_tables


@pytest.fixture
def study(tmp_path: Path) -> tuple[object, ...]:
    steps, experiments = write_tables(tmp_path, *made_up_rows())
    return ("study", "speckv", "--experiments", experiments, "--steps", steps)


def test_writes_rows_and_report(study: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictors, "DECISIONS", 1)
    monkeypatch.setattr(predictors, "CANDIDATES", dict.fromkeys(predictors.CANDIDATES, predictors.CANDIDATES["Ridge"]))
    succeeds(*study, "--json", tmp_path / "new" / "s.json", "--out", tmp_path / "out")
    tables = {row["table"] for row in rows_of(tmp_path / "new" / "s.json")}
    assert tables >= {"policies", "predictors", "improvement"}
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_bad_tables_change_nothing(study: tuple[object, ...], tmp_path: Path) -> None:
    steps = Path(str(study[-1]))
    steps.write_text(steps.read_text().replace("fp16,2,code,1,", "fp12,2,code,1,", 1))
    (tmp_path / "s.json").write_text("kept")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.html").write_text("kept")
    said = refusal(*study, "--json", tmp_path / "s.json", "--out", tmp_path / "out")
    assert "line 3: unknown compression 'fp12'" in said
    assert (tmp_path / "s.json").read_text() == (tmp_path / "out" / "report.html").read_text() == "kept"


def test_destinations_are_checked_before_the_work(study: tuple[object, ...], tmp_path: Path) -> None:
    steps = Path(str(study[-1]))
    before = steps.read_bytes()
    for extra in (("--json", steps), ("--json", tmp_path), ("--json", steps / "s.json"), ("--out", steps)):
        refusal(*study, *extra)
        assert steps.read_bytes() == before
