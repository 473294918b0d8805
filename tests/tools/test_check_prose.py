"""The checks of the prose: the pages pass them, and each finds what it is there to find."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOUND = "A sentence with `a long piece of code, 1 2 3 4` and [a link](page.md#head). It has 1, 2.5x or [3,\n4](a)."
FOUND = {"word " * 26 + ".": "26 words", "Gains are 1%, 2.0x, +3 and [4.5].": "4 numbers", "- A\n- b " * 13: None}


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.delitem(sys.modules, "check_prose", raising=False)


def test_the_pages_pass(capsys: pytest.CaptureFixture[str]) -> None:
    import check_prose

    assert check_prose.main() == 0, capsys.readouterr().err


@pytest.mark.parametrize(("text", "found"), [*FOUND.items(), (f"# 1 2 3 4\n| {'x ' * 30} |\n", None)])
def test_sentences_are_measured(text: str, found: str | None) -> None:
    import check_prose

    said = list(check_prose.long_sentences(text))
    assert (found in said[0]) if found else not said


def test_links_and_length_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import check_prose

    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# Head, one\n[a](#head-one) [b](#tail) [c](gone.md)\n" + "| word |\n" * 400)
    said = " ".join(check_prose.page_problems(page))
    assert "1,2" in said
    assert "#tail, a heading" in said
    assert "gone.md, which" in said
    assert "head-one" not in said
