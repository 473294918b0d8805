"""One process at a time, among those that share a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in here with the same path, whose folder exists; a killed process leaves no lock
    behind.

    Where the system has no such locks (Windows), nobody waits.
    """
    if find_spec("fcntl") is None:
        yield
        return
    fcntl = import_module("fcntl")
    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
