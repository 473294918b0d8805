"""One process at a time, among those that share a file or a folder. A killed process leaves no lock behind."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from draftgauge.core.errors import DraftgaugeError

FOLDER_LOCK = ".draftgauge.lock"
POLL_SECONDS = 0.1


@contextmanager
def alone(path: Path) -> Iterator[None]:
    with path.with_name(f".{path.name}.lock").open("a") as file:
        try_lock(file, wait=True)
        yield


@contextmanager
def only_writer(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Be the only process that writes into a folder, which exists."""
    until = time.monotonic() + patience
    with (folder / FOLDER_LOCK).open("a") as file:  # not "w", which would touch the file
        while not try_lock(file):
            if time.monotonic() >= until:
                raise DraftgaugeError(
                    f"another process is writing into {folder}: wait for it to end, or choose another folder"
                )
            time.sleep(POLL_SECONDS)
        yield


def try_lock(file: IO[Any], wait: bool = False) -> bool:
    """Lock an open file until it is closed; whether that succeeded.

    Raises:
        DraftgaugeError: where files cannot be locked, as in some network folders.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        raise DraftgaugeError(
            f"{file.name} cannot be locked ({error.strerror}), as in some network folders: choose a folder on a local "
            "disk"
        ) from error
    return True
