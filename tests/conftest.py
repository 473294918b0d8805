"""What all tests share: no network, no cost curves in the user's cache, one thread for tiny models, a CPU,
unless ``DRAFTGAUGE_TEST_DEVICE`` names another device for :mod:`devices`, and nothing slow that is tested elsewhere.
"""

from __future__ import annotations

import functools
import gc
import os
import tempfile
from collections.abc import Iterator

import pytest

gc.disable()  # until tests are collected: a quarter of that time
os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a test that needs the network is wrong
if os.environ.get("DRAFTGAUGE_TEST_DEVICE", "cpu") == "cpu":  # before torch is imported: what is the same everywhere
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
_CACHE = tempfile.TemporaryDirectory(prefix="draftgauge-tests-")  # removed when the tests end
os.environ["DRAFTGAUGE_CACHE"] = _CACHE.name
if "DRAFTGAUGE_REAL_MODELS" not in os.environ:  # before torch is imported: tiny models want no more, forks have no more
    os.environ["OMP_NUM_THREADS"] = "1"
_made_once = functools.cache(functools.cache)  # the same command line for all files


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    gc.freeze()  # libraries stay: no collection looks at them again
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def tested_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Charts are drawn, files wait for the disk, and the machine is asked again, only in the tests of these."""
    from draftgauge.cli import main
    from draftgauge.core import provenance
    from draftgauge.reporting import charts

    folder = request.path.parent.name
    with pytest.MonkeyPatch.context() as patch:
        if folder not in ("core", "faults", "traces"):
            patch.setattr(os, "fsync", lambda descriptor: None)
            for name in ("_version", "git_revision"):
                patch.setattr(provenance, name, functools.cache(getattr(provenance, name)))
        if request.path.name != "test_pages.py":  # which changes verbs before they are read
            patch.setattr(main, "make_app", _made_once(main.make_app))
        if folder != "reporting":
            empty = charts.Markup('<svg viewBox="0 0 1 1" role="img" aria-label="{}"></svg>').format
            patch.setattr(charts, "_svg", lambda axes, name, description: empty(description))
        yield
