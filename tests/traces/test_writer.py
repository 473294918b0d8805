from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.traces.run import Manifest, read_trace
from draftgauge.traces.shards import shard_paths
from draftgauge.traces.trace import PromptRecord
from draftgauge.traces.writer import TraceWriter, make_trace
from synthetic import same_rows, synthetic_manifest, synthetic_records

GAMMA, LENGTH = 4, 12
RECORDS = synthetic_records(0, 7, LENGTH, GAMMA)
MANIFEST = synthetic_manifest(len(RECORDS), GAMMA, LENGTH)
WHOLE = make_trace(RECORDS, LENGTH)


def record_run(folder: Path, records: Iterable[PromptRecord] = RECORDS, manifest: Manifest = MANIFEST) -> list[str]:
    """Record what is not there yet, as a recorder does; returns the warnings."""
    with (
        warnings.catch_warnings(record=True, action="always", category=UserWarning) as warned,
        TraceWriter(folder, manifest, shard_prompts=2) as writer,
    ):
        done = writer.done
        for record in records:
            if record.info.index not in done:
                writer.add(record)
    return [str(warning.message) for warning in warned]


def interrupted_run(folder: Path, records: Iterable[PromptRecord]) -> None:
    """Record some prompts, then Ctrl-C."""
    with TraceWriter(folder, MANIFEST) as writer:
        for record in records:
            writer.add(record)
        raise KeyboardInterrupt


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class KilledError(BaseException):
    """The process is gone: nothing after it reaches the disk."""


def kill_at(patch: pytest.MonkeyPatch, moment: int) -> None:
    """From the given file operation on, every one fails, those that would clean up too: what a kill leaves behind."""
    calls = iter(range(10**6))

    def guarded(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            if next(calls) >= moment:
                raise KilledError
            return original(*args, **kwargs)

        patch.setattr(owner, name, operation)

    for owner, name in ((Path, "open"), (os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "mkdir")):
        guarded(owner, name)


def killed_run(folder: Path, moment: int) -> bool:
    """Record until the kill; whether it came before the end."""
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, moment)
        try:
            record_run(folder)
        except KilledError:
            return True
    return False


def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """At every file operation of a run, and once more while it is resumed."""
    for moment in range(100):
        folder = tmp_path / f"run{moment}"
        if not killed_run(folder, moment):
            break
        killed_run(folder, moment // 2 + 3)
        before = shard_paths(folder) if folder.exists() else []
        assert record_run(folder) == []
        assert same_rows(read_trace(folder), WHOLE)
        assert set(before) <= set(folder.iterdir())
        assert {path.suffix for path in folder.iterdir()} == {".json", ".parquet"}
    assert 24 <= moment < 99  # 4 shards and 2 manifests are written, each in 4 operations


def test_interrupt_writes_what_is_in_memory(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path, RECORDS[:3])
    assert Manifest.load(tmp_path).complete is False
    with TraceWriter(tmp_path, MANIFEST) as writer:
        assert writer.done == {0, 1, 2}
    assert record_run(tmp_path) == []
    assert same_rows(read_trace(tmp_path), WHOLE)


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped"])
def test_a_damaged_shard_is_named_removed_and_recorded_again(tmp_path: Path, damage: str) -> None:
    record_run(tmp_path)
    path = shard_paths(tmp_path)[1]
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[100] ^= 0xFF
    path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "flipped": content}[damage])
    with pytest.raises(
        TraceError, match=r"positions-00001\.parquet is truncated or damaged.*run `draftgauge profile --out here` again"
    ):
        read_trace(tmp_path)
    (warning,) = record_run(tmp_path)
    assert "positions-00001.parquet is truncated or damaged" in warning
    assert "recorded again" in warning
    assert not path.exists()
    assert same_rows(read_trace(tmp_path), WHOLE)


def test_a_complete_trace_with_a_damaged_shard_is_no_longer_complete(tmp_path: Path) -> None:
    record_run(tmp_path)
    shard_paths(tmp_path)[0].write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match="recorded again"), pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path, [])
    with pytest.raises(TraceError, match="is incomplete: 5 of 7 prompts"):
        read_trace(tmp_path)


def test_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), TraceWriter(tmp_path, replace(MANIFEST, gamma_max=8)):
        raise KeyboardInterrupt  # with nothing recorded, so that the folder is free
    record_run(tmp_path)
    leftover = tmp_path / ".positions-00009.parquet.1.draftgauge-tmp"
    leftover.write_bytes(b"half")
    before = contents(tmp_path)
    other = replace(MANIFEST, gamma_max=8, target=replace(MANIFEST.target, compression="int8"))
    message = "another run .*gamma_max: 4, not 8; target.compression: 'uncompressed', not 'int8'.*choose another folder"
    with pytest.raises(TraceError, match=message):
        TraceWriter(tmp_path, other)
    assert contents(tmp_path) == before


def test_tokens_of_another_tokenizer_do_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    run, own = tmp_path / "run", replace(MANIFEST, tokenizer=str(tmp_path / "one"))
    record_run(run, RECORDS[:2], own)
    for tokenizer in (None, str(tmp_path / "other"), "other/tokenizer"):
        with pytest.raises(TraceError, match=r"another run .*tokenizer: '.*one', not"):
            TraceWriter(run, replace(MANIFEST, tokenizer=tokenizer))
    monkeypatch.chdir(tmp_path)
    record_run(run, manifest=replace(MANIFEST, tokenizer="one"))  # the same one, spelled otherwise
    assert read_trace(run).prompts == WHOLE.prompts


def test_places_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    record_run(other, manifest=replace(MANIFEST, drafter="prompt_lookup"))
    (other / "manifest.json").unlink()
    before = contents(other)
    with pytest.raises(TraceError, match=r"shards of a trace without their manifest\.json; choose another folder"):
        TraceWriter(other, MANIFEST)
    assert contents(other) == before
    MANIFEST.save(other)
    with pytest.raises(TraceError, match=r"positions-00000\.parquet belongs to another run"):
        TraceWriter(other, MANIFEST)
    assert len(shard_paths(other)) == 4
    with pytest.raises(DraftgaugeError, match="is a file where a folder is needed"):
        TraceWriter(other / "manifest.json" / "run", MANIFEST)


def test_a_run_is_extended_by_more_prompts_of_the_same_file(tmp_path: Path) -> None:
    fewer = replace(MANIFEST, prompts=replace(MANIFEST.prompts, count=3))
    record_run(tmp_path, RECORDS[:3], fewer)
    first = Manifest.load(tmp_path)
    assert (first.complete, first.prompts.count, first.prompts.tasks) == (True, 3, ("code", "math", "chat"))
    with pytest.raises(KeyboardInterrupt):
        interrupted_run(tmp_path, RECORDS[5:6])
    with pytest.raises(TraceError, match="is incomplete: 4 of 7 prompts"):
        read_trace(tmp_path)
    record_run(tmp_path)
    assert Manifest.load(tmp_path).prompts.count == 7
    assert same_rows(read_trace(tmp_path), WHOLE)


def test_a_prompt_is_recorded_once(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, MANIFEST, shard_prompts=2) as writer:
        for record in RECORDS[:3]:
            writer.add(record)
        for index in (0, 2):  # in a shard, and in memory
            with pytest.raises(AssertionError):
                writer.add(RECORDS[index])
