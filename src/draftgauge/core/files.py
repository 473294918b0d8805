"""Durable files: a kill or power cut at any moment leaves the old content of a file or the new, never a part.

Of processes that share a file or folder, one writes at a time; a killed one leaves no lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from draftgauge.core.errors import DraftgaugeError

TEMPORARY_SUFFIX = ".draftgauge-tmp"
FOLDER_LOCK = ".draftgauge.lock"
POLL_SECONDS = 0.1

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file by any library: yields a temporary path beside it, which is flushed to disk and then takes its name.

    A symbolic link stays one. Temporaries that killed writers of the same file left behind are removed.

    Raises:
        DraftgaugeError: if the disk is full or the file cannot be written; the file at ``path`` is unchanged.
    """
    target = file_target(path)
    with explained(path):
        remove_temporaries(target.parent, target.name)
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
        try:
            with temporary.open("ab") as held:  # held and locked: others see that its writer is alive
                try_lock(held)
                yield temporary
                sync(temporary)
                temporary.replace(target)
        except BaseException:  # KeyboardInterrupt too: no leftovers
            temporary.unlink(missing_ok=True)
            raise
        sync(target.parent)


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content, see :func:`replacing`. Pipes and devices such as ``/dev/stdout`` are written to."""
    target = file_target(path)
    if target.exists() and not target.is_file():
        with explained(path):
            target.write_bytes(content)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def atomic_write_text(path: Path, content: str) -> None:
    atomic_write_bytes(path, content.encode())


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, from the system's memory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush all files below a folder, and the folders, to the disk."""
    with explained(folder):
        for parent, _, names in os.walk(folder):
            for name in names:
                sync(Path(parent, name))
            sync(Path(parent))
        sync(folder.absolute().parent)


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines to a file, on a new line where a kill has cut the last one."""
    with explained(path), path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write((lines if not lines or lines.endswith("\n") else lines + "\n").encode())


def remove_temporaries(folder: Path, name: str = "") -> None:
    """Remove the temporaries that killed writers left in a folder, of all files or of one."""
    with os.scandir(folder) as entries:
        leftovers = [e.name for e in entries if e.name.startswith(f".{name}") and e.name.endswith(TEMPORARY_SUFFIX)]
    for leftover in (folder / entry for entry in sorted(leftovers)):
        try:
            with leftover.open("ab") as file:
                if not try_lock(file):  # its writer is alive
                    continue
            leftover.unlink()
        except (OSError, DraftgaugeError):  # removed by another process, or not ours to remove
            continue


def file_target(path: Path) -> Path:
    """Where a file is written, symbolic links followed; it need not be there."""
    try:
        folder = stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        folder = False
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise DraftgaugeError(
            f"cannot write {path}: {getattr(error, 'strerror', error)}; choose another place"
        ) from error
    target = Path(os.path.realpath(path))
    if folder:
        raise DraftgaugeError(f"{target} is a folder: name a file in it")
    return target


def require_writable_file(path: Path) -> None:
    require_writable(file_target(path).parent)


def require_place(folder: Path) -> None:
    """Refuse what cannot be a folder, before anything takes long; nothing is created."""
    if "\0" in str(folder):
        raise DraftgaugeError(f"cannot write {str(folder)!r}: a name cannot hold a NUL character")
    with explained(folder):
        obstacle = next((parent for parent in (folder, *folder.parents) if parent.is_file()), None)
        if obstacle is not None:
            raise DraftgaugeError(
                f"{obstacle} is a file where a folder is needed; choose another folder or move the file away"
            )


def require_writable(folder: Path) -> None:
    """Create a folder if need be and make sure that files can be written into it."""
    require_place(folder)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DraftgaugeError(f"{folder} cannot be written to; choose another folder or change its permissions")


def nearest_existing(folder: Path) -> Path:
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What goes wrong while a path is written to, as a :class:`DraftgaugeError` that names it.

    Libraries that write by themselves (safetensors) have errors of their own for a full disk.
    """
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) in _FULL or "No space left on device" in str(error):
            raise DraftgaugeError(
                f"no space left on the disk while writing {path}; whatever was written before is whole. "
                "Free some space and run the same command again: it goes on from there"
            ) from error
        if isinstance(error, OSError):
            raise DraftgaugeError(
                f"cannot write {path}: {error.strerror or error}; choose another place or change its permissions"
            ) from error
        raise


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


VARIABLE = "DRAFTGAUGE_CACHE"


def cache_folder() -> Path:
    """``$DRAFTGAUGE_CACHE``, else ``draftgauge`` in the user's cache folder (``$XDG_CACHE_HOME``, else ``~/.cache``).
    It lies in the folder for temporary files where a user has no home, as in containers."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise DraftgaugeError(f"{VARIABLE} is {named!r}, and there is no such user: give a folder") from error
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftgauge"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"draftgauge-{os.getuid()}"
