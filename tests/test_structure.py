"""The shape of the code, as far as the import contracts of ``pyproject.toml`` do not check it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import draftgauge
from draftgauge.drafters.base import drafter_kinds

PROJECT = Path(__file__).parents[1]


def test_nobody_asks_for_a_kind_of_drafter_by_name() -> None:
    kinds = drafter_kinds()
    assert kinds
    asked = [
        f"{path}:{node.lineno}"
        for path in Path(draftgauge.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for part in (node.left, *node.comparators)
        if isinstance(part, ast.Constant) and part.value in kinds
    ]
    assert asked == []


def test_the_source_archive_holds_what_its_tests_read_and_its_makefile_runs() -> None:
    build = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    patterns = build["targets"]["sdist"]["include"]
    assert all(pattern.startswith("/") for pattern in patterns), "others match in every folder"
    run = re.findall(r"python (\w+)/", (PROJECT / "Makefile").read_text(encoding="utf-8"))
    assert set(run) == {"benchmarks", "tests", "tools"}
    needed = {*run, "src", "tests", "docs", "CONTRIBUTING.md", "README.md"}
    assert [name for name in sorted(needed) if not any(PROJECT / name in PROJECT.glob(p[1:]) for p in patterns)] == []
