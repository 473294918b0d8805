from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import draftgauge as dg
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.traces.run import MANIFEST_NAME, Run, read_trace
from draftgauge.traces.shards import next_shard, shard_paths, write_shard
from draftgauge.traces.writer import TraceWriter, make_trace
from synthetic import same_rows, synthetic_manifest, synthetic_records
from written_runs import write_records, write_run

GAMMA, LENGTH = 4, 10
RECORDS = synthetic_records(1, 9, LENGTH, GAMMA)
MANIFEST = synthetic_manifest(len(RECORDS), GAMMA, LENGTH)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_records(tmp_path / "run", MANIFEST, reversed(RECORDS), shard=4)
    return tmp_path / "run"


def test_prompts_come_by_index_whatever_the_shards(run: Path) -> None:
    trace = read_trace(run)
    assert same_rows(trace, make_trace(RECORDS, LENGTH))
    assert (trace.gamma_max, trace.max_new_tokens, trace.compression) == (GAMMA, LENGTH, "uncompressed")
    assert all(getattr(trace, name).flags.writeable for name in ("token", "confidence"))


def test_a_run_of_an_earlier_version_calls_its_target_none(tmp_path: Path) -> None:
    earlier = replace(MANIFEST, target=replace(MANIFEST.target, compression="none"))
    write_records(tmp_path, earlier, RECORDS)
    assert '"compression": "none"' in (tmp_path / MANIFEST_NAME).read_text()
    assert read_trace(tmp_path).compression == "uncompressed"
    with TraceWriter(tmp_path, MANIFEST) as resumed:
        assert resumed.done == {prompt.index for prompt in read_trace(tmp_path).prompts}


def test_tasks_choose_prompts(run: Path) -> None:
    assert [p.index for p in read_trace(run, tasks=["code", "chat"]).prompts] == [0, 2, 4, 6, 8]
    with pytest.raises(TraceError, match="holds no task 'poetry'; it has chat, code, math, summarization"):
        read_trace(run, tasks=["poetry"])


def test_find_runs(run: Path, tmp_path: Path) -> None:
    assert Run.load(run) == Run(run)
    shutil.copytree(run, tmp_path / "int8")
    (tmp_path / "other").mkdir()
    assert Run.find(tmp_path) == [Run(tmp_path / "int8"), Run(run)]
    with pytest.raises(DraftgaugeError, match="holds 2 runs: name one of them"):
        Run.load(tmp_path)
    absent = {"other": "holds no trace", "absent": "there is no folder", "run/manifest.json": "is a file, no run"}
    for look in (dg.report, Run.find):  # a report, which is to lie in the folder, makes none
        for name, said in absent.items():
            with pytest.raises(TraceError, match=said):
                look(tmp_path / name)


def test_a_lost_shard_is_noticed(run: Path) -> None:
    shard_paths(run)[0].unlink()
    with pytest.raises(
        TraceError, match=r"is incomplete: 5 of 9 prompts are recorded; run `draftgauge profile --out here` again"
    ):
        read_trace(run)


def test_a_doubled_prompt_is_refused(run: Path) -> None:
    write_shard(next_shard(run), [RECORDS[2]], MANIFEST.fingerprint())
    with pytest.raises(TraceError, match="holds prompt 2 more than once"):
        read_trace(run)
    with pytest.raises(TraceError, match=r"positions-00003\.parquet holds prompt 2, as an earlier shard does"):
        TraceWriter(run, MANIFEST)


def test_values_that_cannot_be_are_refused(tmp_path: Path) -> None:
    confidence = RECORDS[0].confidence.copy()
    confidence[0, 0] = 2.0
    manifest = synthetic_manifest(1, GAMMA, LENGTH, complete=True)
    manifest.save(tmp_path)
    write_shard(next_shard(tmp_path), [replace(RECORDS[0], confidence=confidence)], manifest.fingerprint())
    with pytest.raises(TraceError, match=r"confidence must lie in 0..1"):
        read_trace(tmp_path)


def test_drafts_and_outputs_longer_than_the_manifest_says_are_refused(tmp_path: Path) -> None:
    for manifest, message in (
        (synthetic_manifest(1, 2, LENGTH, complete=True), "has a draft of 4 tokens, longer than gamma_max 2"),
        (synthetic_manifest(1, GAMMA, 5, complete=True), r"prompt 0 has more output tokens than max_new_tokens \(5\)"),
    ):
        manifest.save(tmp_path)
        write_shard(tmp_path / "positions-00000.parquet", RECORDS[:1], manifest.fingerprint())
        with pytest.raises(TraceError, match=message):
            read_trace(tmp_path)


def test_verbs_take_a_loaded_run_in_place_of_its_folder(tmp_path: Path) -> None:
    run = Run.load(write_run(tmp_path / "run", 8))
    assert dg.replay(run, ["fixed:1"]) == dg.replay(run.folder, ["fixed:1"])
