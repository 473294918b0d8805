"""Files and artefacts on disk: replaced whole, refused where damaged, with where they come from."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftgauge.core import verb
from draftgauge.core.artefacts import Artefact, parse_json, read_json, read_json_lines, read_text
from draftgauge.core.errors import DraftgaugeError, TraceError
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
from draftgauge.core.provenance import command_line, environment, git_revision, read_measurement, write_measurement
from draftgauge.core.verb import busy_note, describe_load, machine_load, watched_load


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


KIND = Artefact("draftgauge-thing", 3, "thing", "make it again", error=TraceError)
CONTENT = {"numbers": [0.1, 1e-300, -0.0, 2**70], "text": "zwölf [1,  2]", "nested": {"a": [], "b": None}}


def test_what_is_written_is_read_and_lists_of_numbers_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    KIND.write(path, CONTENT)
    assert KIND.read(path) == CONTENT
    assert ' "numbers": [ 0.1, 1e-300, -0.0, 1180591620717411303424 ],\n' in path.read_text(encoding="utf-8")
    assert list(json.loads(path.read_text(encoding="utf-8"))) == ["format", "version", "sha256", *CONTENT]


def _without(key: str) -> Any:
    return lambda document: {name: value for name, value in document.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without("text"), "does not match its checksum"),
        (_without("sha256"), "without a checksum"),
        (_without("version"), "of version None, this draftgauge reads 3"),
        (_without("format"), "is not a thing"),
        (lambda document: document | {"more": 1}, "does not match"),
        (lambda document: document | {"version": 4}, "of version 4"),
        (lambda document: document | {"numbers": [math.nan]}, "does not match"),
        (lambda document: [document], "is not a thing"),
        (lambda document: None, "is not a thing"),
    ],
)
def test_what_is_not_as_it_was_written_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "a.json"
    KIND.write(path, CONTENT)
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))))
    with pytest.raises(TraceError, match=rf"a\.json.*{message}.*make it again"):
        KIND.read(path)


def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        KIND.write(tmp_path / "a.json", {"x": math.inf})
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"there is no thing .*a\.json; make it again"):
        KIND.read(tmp_path / "a.json")
    for name in (tmp_path, tmp_path / "a\0b"):
        with pytest.raises(DraftgaugeError, match="cannot read the file"):
            read_json(name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_marks_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "ü\u2028"}\r\n\n[1]\n', encoding=encoding)
    assert list(read_json_lines(path)) == [(f"{path}, line 1", {"a": "ü\u2028"}), (f"{path}, line 3", [1])]
    path.write_text('{"a": "ü"}', encoding=encoding)
    assert read_json(path) == {"a": "ü"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' * 3000 + "1" + "}" * 3000, "nested more than 100 levels deep"),
        ("[" * 102 + "1" + "]" * 102, "nested more than 100 levels deep"),
        ('{"a": 1, "b": 2, "a": 3}', "the key 'a' is given twice"),
        ("1" * 5000, "not JSON .*digits"),
        ('{"a": }', r"not JSON \(Expecting value at column 7\)"),
        ('{\n"a": }', "line 2, column 6"),
        ("", "Expecting value"),
        (b'"\xff"', "codec can't decode"),
    ],
)
def test_what_is_not_json_is_refused_in_words(text: str | bytes, message: str) -> None:
    with pytest.raises(DraftgaugeError, match=rf"the answer: .*{message}.*; ask again"):
        parse_json(text, "the answer", "ask again")


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n{\n")
    with pytest.raises(DraftgaugeError, match=r"a\.jsonl, line 2: not JSON"):
        list(read_json_lines(path))
    path.write_bytes(b'{}\n{"a": "\xff"}\n')
    with pytest.raises(DraftgaugeError, match=r"a\.jsonl, line 2: not UTF-8"):
        list(read_json_lines(path))


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2**20)
    assert len(read_text(tmp_path / "a", max_bytes=2**20)) == 2**20
    with pytest.raises(DraftgaugeError, match="larger than 1 MiB, the most for a note"):
        read_text(Path("/dev/zero"), "note", max_bytes=2**20)


def test_a_file_of_one_s_own_may_be_of_any_size(tmp_path: Path) -> None:
    (tmp_path / "long.jsonl").write_text("[1]\n[2]\n")
    rows = read_json_lines(tmp_path / "long.jsonl", max_bytes=None)
    assert [row for _, row in rows] == [[1], [2]]
    with pytest.raises(DraftgaugeError, match="is larger than"):
        list(read_json_lines(tmp_path / "long.jsonl", max_bytes=4))


TICK = os.sysconf("SC_CLK_TCK")


def test_other_work_and_stolen_time_are_told_from_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, now, own = tmp_path / "stat", [100.0], [10.0]
    monkeypatch.setattr(verb, "_STAT", stat)
    monkeypatch.setattr(verb.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(verb.os, "times", lambda: (own[0], 0.0, 0.0, 0.0, 0.0))

    def spent(user: int, idle: int, steal: int) -> None:
        stat.write_text(f"cpu {user * TICK} 0 0 {idle * TICK} 0 0 0 {steal * TICK}\n")

    spent(50, 50, 0)
    with watched_load():
        # In 10 s on two cores: 10 s of ours, 5 s of others, 3 s stolen, 2 s idle.
        now[0], own[0] = 110.0, 20.0
        spent(65, 52, 3)
        with watched_load():  # an inner run begins no new time
            found = machine_load()
    assert found is not None
    assert (found["steal"], found["other_cores"], found["seconds"]) == (0.15, 0.5, 10.0)
    assert "0.5 cores busy with other processes, 15.0% of the time stolen" in describe_load(found)


def test_a_plan_on_a_busy_machine_says_how_much_longer_it_takes() -> None:
    """Six others that want two cores: a thread gets two sevenths of one, two threads a quarter of both."""
    busy = {"other_cores": 1.9, "cores": 2, "load_average": 6.0}
    assert "other processes take 1.9 of 2 cores" in busy_note(busy)
    assert busy_note(busy).endswith("expect up to 4.0 times as long.")
    assert busy_note(busy, threads=1).endswith("expect up to 3.5 times as long.")
    assert busy_note(busy | {"load_average": 0.4}, threads=1).endswith("expect up to 1.0 times as long.")
    assert busy_note(busy | {"other_cores": 0.3}) == busy_note(None) == ""


def test_measurement_round_trip_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    rows = [
        {"policy": "fixed:4", "tokens_per_second": np.float32(1.5), "mismatches": np.int64(0), "ratio": float("nan")},
        {"policy": "none", "tokens_per_second": np.inf, "mismatches": None, "exact": np.True_, "path": Path("a/b")},
    ]
    write_measurement(path, "draftgauge bench x", rows)
    document = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert list(document) == ["format", "version", "sha256", "command", "created", "environment", "rows"]
    measurement = read_measurement(path)
    assert measurement.command == "draftgauge bench x"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(measurement.created)).total_seconds()) < 60
    assert measurement.rows == (
        {"policy": "fixed:4", "tokens_per_second": 1.5, "mismatches": 0, "ratio": None},
        {"policy": "none", "tokens_per_second": None, "mismatches": None, "exact": True, "path": "a/b"},
    )


def test_rows_are_flat(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="rows are flat: by_depth is list"):
        write_measurement(tmp_path / "x.json", "x", [{"by_depth": [1, 2]}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "is not a measurement"),
        ("{}", "'command', 'created', 'environment', 'rows' must be given"),
        ('{"command": "", "created": "", "environment": {}, "rows": [1]}', r"rows\[0\] must be Mapping"),
        ('{"command": "", "created": "", "environment": {}, "rows": [{"a": [1]}]}', r"x\.json: .*a is a list"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(DraftgaugeError, match=message):
        read_measurement(path)


def test_environment_is_json_and_names_the_machine() -> None:
    machine = json.loads(json.dumps(environment(), allow_nan=False))
    assert machine["python"] == ".".join(map(str, sys.version_info[:3]))
    assert machine["versions"]["numpy"] == np.__version__
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0
    assert machine["cpu"]


def test_revision_of_a_checkout(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None  # even where a parent folder is a checkout
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert git_revision(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    subprocess.run([*git, "add", "a"], check=True)
    subprocess.run([*git, "commit", "-q", "--no-verify", "-m", "a"], check=True)
    revision = git_revision(tmp_path)
    assert revision is not None
    assert len(revision) == 40
    (tmp_path / "a").write_text("2")
    assert git_revision(tmp_path) == f"{revision}-dirty"


def test_command_line_can_be_typed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/draftgauge", "profile", "--out", "my folder"])
    assert command_line() == "draftgauge profile --out 'my folder'"
    monkeypatch.setattr(sys, "argv", ["/site-packages/draftgauge/__main__.py", "replay", "run"])
    assert command_line() == "draftgauge replay run"
