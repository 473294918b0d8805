"""Jobs for tests of executors; in a module of their own, which can be sent to other processes as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from draftgauge.core.errors import DraftgaugeError


@dataclass(frozen=True)
class FileJob:
    """Writes a file, or fails as it is told to."""

    name: str
    folder: Path
    after: str | None = None
    fails: str = ""

    def run(self, progress: Callable[[str, int, int], None]) -> None:
        """Do it."""
        if self.fails == "user":
            raise DraftgaugeError("something the user can put right")
        if self.fails == "bug":
            raise KeyError("a bug")
        if self.fails == "death":
            os._exit(1)
        if self.after is not None:
            assert (self.folder / self.after).exists(), "started before what it comes after"
        (self.folder / self.name).write_text(self.name)
        progress(self.name, 1, 1)
