"""How long work reports how far it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def python_bars() -> Progress:
    """A bar for everything that is being done; into a file or a pipe, a line of it now and then."""
    from tqdm.auto import tqdm

    often = 0.1 if in_notebook() or sys.stderr.isatty() else 10.0

    bars: dict[str, Any] = {}

    def advance(what: str, done: int, total: int) -> None:
        if what not in bars:
            bars[what] = tqdm(desc=what, total=total, mininterval=often)
        bars[what].update(done - bars[what].n)
        if done >= total:
            bars[what].close()

    return advance
