"""Rows as a notebook shows them, and prompts given in Python."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import draftgauge
from draftgauge.core.errors import MissingLibraryError, PromptError, missing_library
from draftgauge.core.prompts import read_prompts, write_prompts
from draftgauge.core.table import Rows

ROWS = Rows(
    [
        {"policy": "fixed:2", "task": "code", "gain": 0.5, "verdict": None},
        {"policy": "<b>", "task": "all", "gain": 0.25, "gain_low": 0.125, "gain_high": 0.375, "verdict": "Draft."},
    ]
)


def test_rows_are_a_list_of_dicts_with_one_verdict_and_an_escaped_table() -> None:
    assert json.loads(json.dumps(ROWS)) == ROWS
    assert ROWS.verdict == "Draft."
    html = ROWS._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html
    assert "0.25 [0.125, 0.375]" in html
    assert "fixed:2" not in html  # of several tasks, all of them together
    assert Rows().verdict == ""
    single = Rows([{"gain": 0.25, "gain_low": math.nan, "gain_high": math.nan, "speed": math.nan}])._repr_html_()
    assert "<td>0.25</td>" in single
    assert "nan" not in single
    assert "speed" not in single


def test_printed_rows_are_a_table_as_wide_as_the_terminal_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [{"task": "all", "policy": f"rule {n}", "gain": n / 8, "same": 1, "long": "x" * n * 30} for n in range(3)]
    rows[1]["verdict"] = "Draft."
    heading, *lines, verdict = str(Rows(rows)).splitlines()
    assert heading.split() == ["policy", "gain"]  # without what is the same in every row, or does not fit
    assert [line.split() for line in lines] == [["rule", "0", "0"], ["rule", "1", "0.125"], ["rule", "2", "0.25"]]
    assert verdict == "Draft."
    checked = Rows([{"check": "made-for", "status": "wrong", "what": "Of another target.", "remedy": "Take its own."}])
    assert str(checked).endswith("\nmade-for: Of another target.\n  do: Take its own.")


def test_rows_become_a_data_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = ROWS.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["gain"].tolist() == [0.5, 0.25]
    assert frame["gain_high"].isna().tolist() == [True, False]


def test_a_library_of_an_extra_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install 'draftgauge[report]'" in str(missing_library("matplotlib.pyplot"))
    assert missing_library("antigravity") is None
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingLibraryError, match="pip install pandas"):
        ROWS.to_pandas()
    monkeypatch.delitem(sys.modules, "draftgauge.reporting.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingLibraryError, match=r"draftgauge\[report\]"):
        _ = draftgauge.plot


def test_prompts_may_be_texts_or_dicts(tmp_path: Path) -> None:
    path = write_prompts(["Hello", {"prompt": "2 + 2?", "task": "math"}], tmp_path)
    assert path == write_prompts(["Hello", {"prompt": "2 + 2?", "task": "math"}], tmp_path)
    assert [(prompt.text, prompt.task) for prompt in read_prompts(path)] == [("Hello", "prompts"), ("2 + 2?", "math")]
    for wrong in ([object()], [3], [], [{"prompt": object()}]):
        with pytest.raises(PromptError, match="prompts must be texts or dicts"):
            write_prompts(wrong, tmp_path)  # type: ignore[arg-type]
