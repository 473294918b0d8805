"""The checks of the prose: the pages pass them, and each finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def test_the_pages_pass_and_what_is_wrong_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import check_prose

    assert check_prose.main() == 0, capsys.readouterr().err
    monkeypatch.setattr(check_prose, "ROOT", tmp_path)
    sound = f"# 1 2, a\n[A](#1-2-a). {'Word ' * 25}.\n- 1 2 3 `4`.\n| {'c ' * 30} |\n```\n{'d ' * 30}\n```\n"
    (tmp_path / "page.md").write_text(sound)
    assert check_prose.main() == 0, capsys.readouterr().err
    (tmp_path / "page.md").write_text(
        f"{sound}{'word ' * 26}. 1%, 2.0x, +3 [4]! [b](#tail) [c](gone.md) {'`d`. ' * 900}"
    )
    assert check_prose.main() == 1
    said = capsys.readouterr().err
    for found in ("26 words, 0 numbers", "4 numbers", "#tail, a heading", "gone.md, which", "words, more than 900"):
        assert found in said
