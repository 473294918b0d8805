from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.files import (
    TEMPORARY_SUFFIX,
    append_lines,
    atomic_write_bytes,
    atomic_write_text,
    cache_folder,
    only_writer,
    replacing,
    require_writable,
    require_writable_file,
    try_lock,
)


def test_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic_write_text(path, "one")
    atomic_write_text(path, "zwölf")
    assert path.read_bytes() == "zwölf".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(tmp_path / "a.json")
    atomic_write_text(link, "one")
    assert link.is_symlink()
    assert (tmp_path / "a.json").read_text() == "one"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        atomic_write_text(pipe, "two")
        assert read.result(timeout=30) == "two"
    assert pipe.is_fifo()


def test_lines_are_whole_behind_one_that_a_kill_has_cut(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    append_lines(path, "one")
    append_lines(path, "zwölf\nthree\n")
    assert path.read_text(encoding="utf-8") == "one\nzwölf\nthree\n"
    with path.open("a") as file:
        file.write("fo")
    append_lines(path, "five")
    append_lines(path, "")
    assert path.read_text(encoding="utf-8").splitlines() == ["one", "zwölf", "three", "fo", "five"]


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
GO_ON = r"no space left on the disk while writing .*a\.bin.*run the same command again"


@pytest.mark.parametrize(
    ("owner", "step", "error", "said"),
    [(os, "fsync", FULL, GO_ON), (Path, "replace", FULL, GO_ON), (os, "fsync", KeyboardInterrupt(), "^$")],
)
def test_a_full_disk_or_an_interrupt_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, error: BaseException, said: str
) -> None:
    path = tmp_path / "a.bin"
    atomic_write_bytes(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(owner, step, fail)
    with pytest.raises((DraftgaugeError, KeyboardInterrupt), match=said):
        atomic_write_bytes(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    for folder in (tmp_path / "a", tmp_path / "a" / "b" / "c"):
        with pytest.raises(DraftgaugeError, match=r"/a is a file where a folder is needed"):
            require_writable(folder)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(DraftgaugeError, match="cannot be written to"):
        require_writable(tmp_path)


def test_paths_that_cannot_be_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (Path("a"), Path("."), Path("/"), Path("a/c"), Path("n\0l")):
        with pytest.raises(DraftgaugeError, match=r"cannot write|is a folder: name a file in it"):
            require_writable_file(path)
        with pytest.raises(DraftgaugeError, match=r"cannot write|is a folder"):
            atomic_write_text(path, "x")
    for folder in (Path("a"), Path("n\0l")):
        with pytest.raises(DraftgaugeError, match="cannot write"):
            require_writable(folder)
    require_writable_file(Path("new/c.json"))
    assert (tmp_path / "new").is_dir()


def test_the_temporaries_of_killed_writers_are_removed_by_the_next_write(tmp_path: Path) -> None:
    mine, others = (tmp_path / f".{name}.123{TEMPORARY_SUFFIX}" for name in ("a.json", "b.json"))
    alive = tmp_path / f".a.json.124{TEMPORARY_SUFFIX}"
    for path in (mine, others):
        path.write_text("half")
    with alive.open("w") as file:
        try_lock(file)
        atomic_write_text(tmp_path / "a.json", "x")
        assert sorted(tmp_path.iterdir()) == sorted([alive, others, tmp_path / "a.json"])


def test_a_library_writes_in_one_piece(tmp_path: Path) -> None:
    def write(text: str, fails: bool = False) -> None:
        with replacing(tmp_path / "a") as path:
            path.write_text(text)
            if fails:
                raise RuntimeError("I/O error: No space left on device (os error 28)")  # as safetensors says it

    write("one")
    with pytest.raises(DraftgaugeError, match="no space left on the disk"):
        write("two", fails=True)
    assert (tmp_path / "a").read_text() == "one"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("named", "home"), [("~no_such_user_here/x", True), ("", False)])
def test_the_cache_has_a_place_without_a_home(monkeypatch: pytest.MonkeyPatch, named: str, home: bool) -> None:
    monkeypatch.setenv("DRAFTGAUGE_CACHE", named)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home:
        with pytest.raises(DraftgaugeError, match="no such user"):
            cache_folder()
        return

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert cache_folder().name == f"draftgauge-{os.getuid()}"


def test_folders_that_cannot_be_locked_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(DraftgaugeError, match=r"cannot be locked \(No locks available\)"), only_writer(tmp_path):
        pass
