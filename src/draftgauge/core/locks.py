"""One at a time, of processes that share a file and threads that share a model. A killed process leaves no lock."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from weakref import WeakKeyDictionary

from draftgauge.core.errors import DraftgaugeError

FOLDER_LOCK = ".draftgauge.lock"
POLL_SECONDS = 0.1
_LOCKS: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()  # of models, and of what keeps a state for them
_LOOKING_UP = threading.Lock()
_MINE = threading.local()  # ``inside``: whether this thread is in such a call


@contextmanager
def in_turn(*shared: object) -> Iterator[None]:
    """Be the only call that uses these objects: other threads wait, and what is called from inside is refused."""
    with _LOOKING_UP:
        locks = {id(each): _LOCKS.setdefault(each, threading.Lock()) for each in shared}
    inside = getattr(_MINE, "inside", False)
    with ExitStack() as stack:
        for _, lock in sorted(locks.items()):  # in one order, else two threads could wait for each other
            if not lock.acquire(blocking=not inside):
                raise DraftgaugeError(
                    "the model is decoding, and this call comes from inside a call (a streamer, a criterion or a "
                    "policy): begin it when the other one has ended, or load the model a second time"
                )
            stack.callback(lock.release)
        stack.callback(setattr, _MINE, "inside", inside)
        _MINE.inside = inside or bool(locks)
        yield


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
