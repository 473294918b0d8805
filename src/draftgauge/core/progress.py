"""How long work reports how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def python_bars() -> Progress:
    """A bar for everything that is being done, in notebooks and scripts."""
    from tqdm.auto import tqdm

    bars: dict[str, Any] = {}

    def advance(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(desc=what, total=total, mininterval=1.0)
        bars[what].update(done - bars[what].n)
        if done >= total:
            bars[what].close()

    return advance
