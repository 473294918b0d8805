"""A run joined to one shard holds the same rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftgauge.core.errors import TraceError
from draftgauge.traces.join import join_run
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import read_texts, read_trace
from draftgauge.traces.shards import shard_paths
from draftgauge.traces.writer import TraceWriter
from synthetic import same_rows, synthetic_manifest, synthetic_records

GAMMA, LENGTH = 4, 12
RECORDS = synthetic_records(0, 7, LENGTH, GAMMA)
MANIFEST = synthetic_manifest(len(RECORDS), GAMMA, LENGTH)


def record(folder: Path, manifest: Manifest = MANIFEST, count: int = len(RECORDS)) -> Path:
    with TraceWriter(folder, manifest, shard_prompts=2) as writer:
        for each in reversed(RECORDS[:count]):  # a resumed run records in any order
            writer.add(each)
    return folder


def test_same_rows_in_one_smaller_shard(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    (run / "costs.json").write_text("{}", encoding="utf-8")
    join_run(run, tmp_path / "joined")
    joined = shard_paths(tmp_path / "joined")
    assert len(joined) == 1 < len(shard_paths(run))
    assert joined[0].stat().st_size < sum(path.stat().st_size for path in shard_paths(run))
    assert same_rows(read_trace(tmp_path / "joined"), read_trace(run))
    assert [p.index for p in read_trace(tmp_path / "joined").prompts] == sorted(e.info.index for e in RECORDS)
    assert read_texts(tmp_path / "joined", 3) == read_texts(run, 3)
    assert (tmp_path / "joined" / "costs.json").read_text(encoding="utf-8") == "{}"
    with TraceWriter(tmp_path / "joined", MANIFEST) as writer:  # nothing is left to record
        assert writer.done == {each.info.index for each in RECORDS}
    assert Manifest.load(tmp_path / "joined").complete


def test_joining_again(tmp_path: Path) -> None:
    run = record(tmp_path / "run")
    whole = read_trace(run)
    join_run(run, tmp_path / "joined")
    join_run(run, tmp_path / "joined")
    assert same_rows(read_trace(tmp_path / "joined"), whole)


def test_incomplete_and_other_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="incomplete"):
        join_run(record(tmp_path / "part", count=3), tmp_path / "joined")
    assert not (tmp_path / "joined").exists()
    record(tmp_path / "joined")
    before = {path: path.read_bytes() for path in (tmp_path / "joined").iterdir()}
    for changes, named in (
        ({"prompts": replace(MANIFEST.prompts, sha256="f" * 64)}, "prompts.sha256"),
        ({"tokenizer": "another/tokenizer"}, "tokenizer"),
    ):
        other = record(tmp_path / named, replace(MANIFEST, **changes))
        with pytest.raises(TraceError, match=rf"another run \({named}: "):
            join_run(other, tmp_path / "joined")
    assert {path: path.read_bytes() for path in (tmp_path / "joined").iterdir()} == before
