"""The shape of the code, as far as the import contracts of ``pyproject.toml`` do not check it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import draftgauge
from draftgauge.drafters.source import drafter_kinds

ROOT = "draftgauge"


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What every file of the package imports from it."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = set(imports[start])
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting |= imports[module] - reached
    return reached


def test_no_files_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    assert len(imports) > 200
    assert sorted(module for module in imports if module in reachable(imports, module)) == []


def test_pages_are_written_without_torch() -> None:
    pages = "draftgauge.report, draftgauge.studies.speckv.page, draftgauge.studies.kvshot.page"
    code = f"import sys, {pages}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_drafter_is_registered_in_one_file_and_nobody_asks_for_a_kind() -> None:
    kinds = drafter_kinds()
    modules = [kind.__module__ for kind in kinds.values()]
    assert len(set(modules)) == len(modules) == 3
    asked = [
        f"{path}:{node.lineno}"
        for path in Path(draftgauge.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for part in (node.left, *node.comparators)
        if isinstance(part, ast.Constant) and part.value in kinds
    ]
    assert asked == []
