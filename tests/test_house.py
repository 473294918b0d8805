"""The shape of the code, as far as the import contracts of ``pyproject.toml`` do not check it."""

from __future__ import annotations

import subprocess
import sys

import grimp
import pytest

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
