"""What users get wrong ends in exit code 2 and one clear message."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftgauge.cli.main import run
from written_runs import write_run

PLACE = "no/such"


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that must be refused says."""
    capsys.readouterr()
    assert run(words) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: ")
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["generate", "hi", "--max-new-tokens", "-3"], ["--max-new-tokens must be at least 1, not -3"]),
        (["generate", "hi", "--gamma-max", "0"], ["--gamma-max must be at least 1"]),
        (["profile", "--out", PLACE, "--seconds", "-5"], ["--seconds must be above 0, not -5"]),
        (["profile", "--out", PLACE, "--long-prompts", "no"], ["--long-prompts must be one of error, truncate, skip"]),
        (["generate", "hi", "--seed", "9" * 30], ["--seed must be a number of 64 bits"]),
        (["generate", "hi", "--cost-seconds", "nan"], ["--cost-seconds must be at least 0, not nan"]),
        (["bench", "--seconds", "-1"], ["--seconds must be above 0"]),
        (["profile", "--out", PLACE, "--prompts", "reference:nope"], ["'nope'", "train, validation, test"]),
        (["profile", "--out", PLACE, "--split", "nope"], ["'nope'", "train, validation, test"]),
        (["replay", PLACE, "more"], ["more"]),
    ],
)
def test_values_that_cannot_be(words: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(words, capsys)
    assert all(part in said for part in parts), said


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)
    said = refused(["replay", str(tmp_path / "none"), "--json", str(tmp_path / "new" / "rows.json")], capsys)
    assert "cannot write" in said
    assert "Permission denied" in said


def test_a_json_file_that_is_read_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = write_run(tmp_path / "run", 8), tmp_path / "a.json"
    file.write_text("{}")
    for words in (["replay", str(run), "--policy", str(file)], ["bench", "--prompts", str(file)]):
        assert "is one of the files to read" in refused([*words, "--json", str(file)], capsys)
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("notes.txt", "is not a model folder"), ("drafter.json", "--drafter"), ("manifest.json", "a recorded run")],
)
def test_a_folder_that_is_no_model(name: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("{}")
    said = refused(["generate", "hi", "--draft", str(tmp_path)], capsys)
    assert str(tmp_path) in said
    assert hint in said


def test_a_model_that_is_neither_here_nor_to_be_had(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig, AutoTokenizer

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect to 'https://a.hub' to load the files")

    for auto in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(auto, "from_pretrained", unreachable)
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", unreachable)
    assert "no such folder here" in refused(["generate", "hi", "--target", "nothere"], capsys)
