"""What all tests share: no network, no cost curves in the user's cache, one thread where tests run side by side, and a
CPU, unless ``DRAFTGAUGE_TEST_DEVICE`` names another device for :mod:`devices`.
"""

from __future__ import annotations

import os
import tempfile

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: a test that needs the network is wrong
if os.environ.get("DRAFTGAUGE_TEST_DEVICE", "cpu") == "cpu":  # before torch is imported: what is the same everywhere
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
_CACHE = tempfile.TemporaryDirectory(prefix="draftgauge-tests-")  # removed when the tests end
os.environ["DRAFTGAUGE_CACHE"] = _CACHE.name
if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: each process has one core
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
