"""What users get wrong ends in exit code 2 and one clear message."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from command_line import refusal
from written_runs import write_run


def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    assert "name a file" in refusal("replay", str(tmp_path / "none"), "--json", "-")
    said = refusal("replay", str(tmp_path / "none"), "--json", str(tmp_path / "new" / "rows.json"))
    assert "cannot write" in said
    assert "Permission denied" in said


def test_a_json_file_that_is_read_is_not_overwritten(tmp_path: Path) -> None:
    run, file = write_run(tmp_path / "run", 8), tmp_path / "a.json"
    file.write_text("{}")
    for words in (["replay", str(run), "--policy", str(file)], ["bench", "--prompts", str(file)]):
        assert "is one of the files to read" in refusal(*words, "--json", str(file))
    assert file.read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("notes.txt", "is not a model folder"),
        ("drafter.json", "not a trained drafter"),
        ("manifest.json", "a recorded run"),
    ],
)
def test_a_folder_that_is_no_model(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    said = refusal("generate", "hi", "--drafter", str(tmp_path))
    assert str(tmp_path) in said
    assert hint in said


def test_a_model_that_is_neither_here_nor_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig, AutoTokenizer

    unreachable = Mock(side_effect=OSError("We couldn't connect to 'https://a.hub' to load the files"))
    for auto in (AutoConfig, AutoTokenizer):
        monkeypatch.setattr(auto, "from_pretrained", unreachable)
    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", unreachable)
    assert "nothere is no folder here" in refusal("generate", "hi", "--target", "nothere")
