"""The scripts under ``benchmarks`` import each other as scripts do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Iterator[None]:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("the benchmarks come with a checkout only")
    before = set(sys.modules)
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))
    for name in set(sys.modules) - before:
        if name in {path.stem for path in (ROOT / "benchmarks").glob("*.py")}:
            del sys.modules[name]
