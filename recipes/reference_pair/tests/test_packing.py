"""Packing: windows are full, tasks stay whole, shares are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.reference_pair.packing import PLAIN, pack


def documents(kind: int, count: int, length: int) -> list[np.ndarray]:
    """Documents that open with their kind's mark, count in their own range and close with mark + 1."""
    return [np.array([kind, *([kind + 2] * (length - 2)), kind + 1], np.uint16) for _ in range(count)]


@given(length=st.integers(8, 40), task=st.integers(2, 30), seed=st.integers(0, 99))
def test_windows_are_full_and_task_documents_whole(length: int, task: int, seed: int) -> None:
    sources = {PLAIN: [np.full(25, 7, np.uint16)], "task": documents(100, 3, task)}
    windows = pack(sources, {PLAIN: 0.5, "task": 0.5}, 6, length, seed, slice_length=5)
    assert windows.shape == (6, length)
    for window in windows.tolist():
        assert set(window) <= {7, 100, 101, 102}
        assert window.count(100) == window.count(101)
        assert window.count(102) == window.count(100) * (task - 2)
    assert (windows == 100).any() == (task <= length)


def test_shares_of_tokens_are_kept() -> None:
    sources = {PLAIN: [np.full(50, 7, np.uint16)], "a": documents(100, 9, 11), "b": documents(200, 9, 17)}
    windows = pack(sources, {PLAIN: 0.5, "a": 0.2, "b": 0.3}, 200, 64, seed=1, slice_length=16)
    assert (windows == 7).mean() == pytest.approx(0.5, abs=0.03)
    assert (windows // 100 == 1).mean() == pytest.approx(0.2, abs=0.03)


def test_the_seed_decides() -> None:
    sources = {PLAIN: [np.arange(n, n + 9, dtype=np.uint16) for n in range(0, 90, 9)]}
    one, same, other = (pack(sources, {PLAIN: 1.0}, 4, 16, seed) for seed in (1, 1, 2))
    assert (one == same).all()
    assert (one != other).any()
