"""The package has what it names, and a type checker refuses what no verb takes; ``make lint`` compares the stub."""

from __future__ import annotations

from pathlib import Path

import pytest

import draftgauge

ROOT = Path(__file__).parents[2]
PROGRAM = """\
from pathlib import Path
import draftgauge as dg

rows: dg.Rows = dg.profile(out="x", prompts=["a", {"prompt": "b"}], batches=[1, 2])
pair = dg.load_pair("reference", "reference")
print(dg.generate(pair, "hello", "fixed:4").text, dg.replay("x", ["fixed"]).verdict, dg.profile(pair, Path("x")))
dg.profile(tarrget=1)
dg.profile(out="x", limit="few")
dg.ReplayRequest
"""
WRONG = [7, 8, 9]  # lines


def test_the_package_says_what_there_is() -> None:
    assert not [name for name in draftgauge.__all__ if name.endswith("Request")]
    assert all(getattr(draftgauge, name) for name in draftgauge.__all__)


def test_mypy_refuses_wrong_keywords(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is no part of the tests' installation")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path}", "--no-pretty"]
    said, _, _ = api.run([*options, str(ROOT / "src/draftgauge/__init__.pyi"), str(program)])
    assert [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line] == WRONG, said
