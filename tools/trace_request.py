"""Which files of the package one command enters before the first token is decoded, or the first optimiser step taken.

Part of ``check_structure.py --trace VERB``. A file is entered when a function of it is called. Code that runs while a
file is imported does not count, nor do methods that dataclasses generate.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "draftgauge"
# The least that each verb does; "{out}" is a folder of its own, "{run}" one that has been profiled before.
SMALL = ("--max-new-tokens", "8", "--limit", "2", "--cost-seconds", "1", "--gamma-max", "4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "profile": ("profile", "--out", "{out}", *SMALL),
    "bench": ("bench", "{run}", "--rounds", "1", "--policy", "fixed:2", "--policy", "stopping"),
    "train": ("train", "--prompts", "{prompts}", "--out", "{out}", "--steps", "2", "--new-tokens", "8"),
    "rank": ("rank", "lookup", "--out", "{out}", *SMALL),
}
LOOPS = (
    "decoding/plain.py",
    "decoding/speculative.py",
    "decoding/recorder.py",
    "training/optimise.py",
    "meter/costs.py",
)


def trace(verb: str, source: Path) -> int:
    """Run ``verb`` on the bundled pair and print the files that it enters, in order; returns the exit code."""
    if verb not in COMMANDS:
        print(f"unknown verb {verb!r}: one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    from draftgauge.cli.main import run
    from draftgauge.models.folder import PAIR_FOLDER

    with tempfile.TemporaryDirectory() as scratch:
        places = {"out": f"{scratch}/out", "run": f"{scratch}/run", "prompts": str(PAIR_FOLDER / "prompts/train.jsonl")}
        if any("{run}" in word for word in COMMANDS[verb]) and run(["profile", "--out", places["run"], *SMALL]):
            return 1
        entered = Entered(source / PACKAGE)
        with entered:
            code = run([word.format(**places) for word in COMMANDS[verb]])
    for name in entered.files:
        print(name)
    print(f"{verb}: {len(entered.files)} files entered before {entered.reached}")
    return code


class Entered:
    """Notes calls of the package's functions until one of a loop's file is called.

    Attributes:
        files: entered, in order, without those below ``package`` that hold the loops.
        reached: the loop's file; empty if none was reached.
    """

    def __init__(self, package: Path) -> None:
        self.files: list[str] = []
        self.reached = ""
        self._package = f"{package.resolve()}/"

    def __enter__(self) -> Entered:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        name = self._name(frame)
        if event != "call" or not name or self._importing(frame):
            return
        if name in LOOPS:
            self.reached = name
            sys.setprofile(None)
            return
        if name not in self.files:
            self.files.append(name)

    def _importing(self, frame: FrameType | None) -> bool:
        """Whether this runs while a file of the package is imported: its own lines, class bodies, decorators."""
        while frame is not None:
            if frame.f_code.co_name == "<module>" and self._name(frame):
                return True
            frame = frame.f_back
        return False

    def _name(self, frame: FrameType) -> str:
        path = frame.f_code.co_filename
        return path.removeprefix(self._package) if path.startswith(self._package) else ""
