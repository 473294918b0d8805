"""Files that are either whole or not there: a kill at any moment leaves the old content or the new, never a part."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from draftgauge.core.errors import DraftgaugeError

TEMPORARY_SUFFIX = ".draftgauge-tmp"

_FULL = (errno.ENOSPC, errno.EDQUOT)


def atomic_write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside it, flush it to the disk, then rename it to its own. A link stays one;
    what is no file (``/dev/stdout``, a pipe) is written to, not replaced.

    Args:
        path: the file; its folder exists.
        content: all of it.

    Raises:
        DraftgaugeError: if the disk is full or the file cannot be written; what stood at ``path`` is unchanged.
    """
    if path.exists() and not path.is_file():
        with _explained(path):
            path.write_bytes(content)
        return
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    with _explained(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:  # KeyboardInterrupt too: no leftovers
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)


def atomic_write_text(path: Path, content: str) -> None:
    """:func:`atomic_write_bytes` of text in UTF-8."""
    atomic_write_bytes(path, content.encode())


def append_lines(path: Path, lines: str) -> None:
    """Append whole lines to a file, behind a new line where a kill has cut the last one.

    Args:
        path: the file; made if it is not there.
        lines: one or more, the last one with or without its end.
    """
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write((lines if not lines or lines.endswith("\n") else lines + "\n").encode())


def remove_temporaries(folder: Path) -> list[Path]:
    """Remove what writes that were killed left in a folder; returns what was removed."""
    leftovers = sorted(folder.glob(f".*{TEMPORARY_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink()
    return leftovers


def require_writable(folder: Path) -> None:
    """Create a folder if need be and make sure that files can be written into it.

    Raises:
        DraftgaugeError: if a file is in the way, or the folder cannot be created or written to.
    """
    obstacle = next((parent for parent in (folder, *folder.parents) if parent.is_file()), None)
    if obstacle is not None:
        raise DraftgaugeError(
            f"{obstacle} is a file where a folder is needed; choose another folder or move the file away"
        )
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DraftgaugeError(f"{folder} cannot be written to; choose another folder or change its permissions")


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DraftgaugeError(
                f"no space left on the disk while writing {path}; whatever was written before is whole. "
                "Free some space and run the same command again: it goes on from there"
            ) from error
        raise DraftgaugeError(
            f"cannot write {path}: {error.strerror or error}; choose another place or change its permissions"
        ) from error


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders; its rename is durable enough
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
