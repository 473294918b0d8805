"""Traces on disk, greedy and sampled: read as written, refused where they cannot be."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import draftgauge as dg
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.traces.run import MANIFEST_NAME, Manifest, Run, read_trace
from draftgauge.traces.shards import next_shard, read_parquet, read_shard, shard_paths, write_parquet, write_shard
from draftgauge.traces.trace import (
    PromptInfo,
    PromptRecord,
    Trace,
    accepted_lengths,
    make_record,
    remaining_rows,
    select,
    take,
)
from draftgauge.traces.writer import TraceWriter, make_trace
from synthetic import (
    same_rows,
    sampled_records,
    synthetic_manifest,
    synthetic_record,
    synthetic_records,
    synthetic_trace,
)
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


def info(length: int, index: int = 0) -> PromptInfo:
    return PromptInfo(index, str(index), "code", "test", 5, length, "stop")


def test_accepted_is_the_matching_prefix_up_to_the_end_of_the_output() -> None:
    record = make_record(info(4), [7, 8, 9, 7], [[7, 8, 9, 7], [8, 1, 7], [], [7, 7]], gamma_max=4)
    assert record.accepted.tolist() == [4, 1, 0, 1]
    assert record.drafted.tolist() == [4, 3, 0, 2]


def test_acceptance_does_not_run_into_the_next_prompt() -> None:
    token = np.asarray([1, 1, 1], np.int32)
    draft = np.full((3, 3), 1, np.int32)
    remaining = remaining_rows(np.asarray([0, 1, 3]))
    assert remaining.tolist() == [1, 2, 1]
    assert accepted_lengths(token, draft, remaining).tolist() == [1, 2, 1]


def good() -> PromptRecord:
    return synthetic_record(np.random.default_rng(1), 3, 12, 4, 12)


def changed(name: str, at: tuple[int, ...], value: float) -> dict[str, Any]:
    column = getattr(good(), name).copy()
    column[at] = value
    return {name: column}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (changed("token", (2,), -1), r"token must be 0 or more \(row 2\)"),
        (changed("draft_token", (5, 1), -1), r"draft_token has tokens after its padding \(-1\) \(row 5\)"),
        (changed("target_entropy", (0,), np.nan), "target_entropy must be bits"),
        (changed("target_entropy", (1,), -0.5), "target_entropy must be bits"),
        (changed("confidence", (4, 0), 1.5), r"confidence must lie in 0..1 \(row 4\)"),
        (changed("entropy", (4, 0), -1), r"entropy must lie in 0..inf \(row 4\)"),
        (
            changed("margin", (4, 0), np.nan),
            r"margin must be a number for each drafted token and NaN for the others \(row 4\)",
        ),
        (
            changed("accepted", (11,), 4),
            r"accepted differs from the drafted tokens that equal the greedy continuation \(row 11\)",
        ),
    ],
)
def test_what_is_off_is_named(changes: dict[str, Any], message: str) -> None:
    good().validate()
    with pytest.raises(TraceError, match=f"prompt 3: {message}"):
        replace(good(), **changes).validate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": 0}, "output_tokens is 0, must be 1 or more"),
        ({"output_tokens": 2**63}, "output_tokens is 9223372036854775808"),
        ({"index": -1}, "index is -1"),
        ({"prompt_tokens": 2**31}, "prompt_tokens is 2147483648"),
        ({"finish": "eos"}, "finish is 'eos', must be one of length, stop"),
    ],
)
def test_prompts_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        replace(info(4), **changes)


def rows_of(trace: Trace, place: int) -> list[list[int]]:
    return trace.draft_token[trace.offsets[place] : trace.offsets[place + 1]].tolist()


def test_select_and_take_keep_prompts_whole() -> None:
    trace = synthetic_trace(2, prompts=5, length=9, gamma_max=3)
    keep = [True, False, False, True, True]
    chosen = select(trace, keep)
    assert [p.index for p in chosen.prompts] == [0, 3, 4]
    assert [rows_of(chosen, i) for i in range(3)] == [rows_of(trace, i) for i in (0, 3, 4)]
    assert chosen.positions == sum(p.output_tokens for p in chosen.prompts) == len(chosen.token)
    twice = take(trace, np.asarray([4, 0, 4]))
    assert [rows_of(twice, i) for i in range(3)] == [rows_of(trace, i) for i in (4, 0, 4)]
    assert select(trace, [False] * 5).positions == 0


tokens = st.integers(0, 2**31 - 1) | st.integers(0, 2)
probabilities = st.floats(0, 1, width=32)
bits = st.floats(0, 100, width=32)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def records(draw: st.DrawFn, index: int, gamma_max: int) -> PromptRecord:
    """Any record, with empty drafts and one-token outputs among them."""
    token = draw(st.lists(tokens, min_size=1, max_size=6))
    drafts = [draw(st.lists(tokens, max_size=gamma_max)) for _ in token]
    info = PromptInfo(
        index=index,
        identifier=draw(words),
        task=draw(words),
        split=draw(words),
        prompt_tokens=draw(st.integers(1, 10**6)),
        output_tokens=len(token),
        finish=draw(st.sampled_from(["length", "stop"])),
    )
    record = make_record(info, token, drafts, gamma_max)
    for column, values in ((record.confidence, probabilities), (record.entropy, bits), (record.margin, probabilities)):
        column[record.draft_token >= 0] = [draw(values) for draft in drafts for _ in draft]
    record.target_entropy[:] = [draw(bits) for _ in token]
    return record


@st.composite
def runs(draw: st.DrawFn) -> list[PromptRecord]:
    gamma_max = draw(st.integers(1, 5))
    indices = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True))
    return [draw(records(index, gamma_max)) for index in indices]


@settings(max_examples=25, deadline=None)
@given(run=runs(), shard_prompts=st.integers(1, 3))
def test_what_is_written_is_read(run: list[PromptRecord], shard_prompts: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = synthetic_manifest(len(run), run[0].gamma_max, 6)
        write_records(folder, manifest, run, shard=shard_prompts)
        by_index = sorted(run, key=lambda record: record.info.index)
        assert same_rows(read_trace(folder), make_trace(by_index, 6))


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "positions-00000.parquet"
    write_shard(path, synthetic_records(0, 2, 5, 3), "f")
    return path


def with_metadata(table: pa.Table, **changes: bytes) -> pa.Table:
    named = {f"draftgauge.{name}".encode(): value for name, value in changes.items()}
    return table.replace_schema_metadata({**table.schema.metadata, **named})


def without_tokens(table: pa.Table) -> pa.Table:
    nulls = pa.array([None] * table.num_rows, pa.int32())
    return table.set_column(table.schema.names.index("token"), "token", nulls)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns("margin"), "lacks the column margin"),
        (lambda table: table.set_column(8, "accepted", table["position"]), "column accepted is int32, expected int16"),
        (lambda table: table.replace_schema_metadata({}), "has columns of version none, this draftgauge reads 1 and 2"),
        (lambda table: with_metadata(table, schema_version=b"9"), "has columns of version 9"),
        (lambda table: with_metadata(table, fingerprint=b"g"), "belongs to another run"),
        (lambda table: with_metadata(table, prompts=b'[{"index": 1}]'), r"has prompt metadata that cannot .*'finish'"),
        (lambda table: with_metadata(table, prompts=b"["), r"has prompt metadata that cannot be read .*not JSON"),
        (lambda table: with_metadata(table, prompts=b"[]"), "does not hold whole prompts"),
        (lambda table: table.slice(1), "does not hold whole prompts"),
        (without_tokens, "has missing values in the column token"),
    ],
)
def test_what_is_no_shard_of_this_run_is_refused(shard: Path, change: Callable, message: str) -> None:
    read_shard(shard, "f")
    write_parquet(shard, change(read_parquet(shard)))
    with pytest.raises(TraceError, match=rf"positions-00000\.parquet {message}"):
        read_shard(shard, "f")


GAMMA_MAX, SAMPLED_LENGTH = 4, 9
GREEDY = synthetic_manifest(3, GAMMA_MAX, SAMPLED_LENGTH)
SAMPLED = replace(GREEDY, temperature=0.8, top_p=0.9, seed=4)


def test_what_is_written_of_sampled_decoding_is_read(tmp_path: Path) -> None:
    records = sampled_records(1, 3, SAMPLED_LENGTH, GAMMA_MAX)
    write_records(tmp_path, SAMPLED, records, shard=2)
    found, made = read_trace(tmp_path), make_trace(records, SAMPLED_LENGTH)
    assert same_rows(found, made)
    for field in fields(made.sampled):
        np.testing.assert_array_equal(getattr(found.sampled, field.name), getattr(made.sampled, field.name), field.name)
    assert (found.accepted > 0).any(), "rows are drawn: some drafts are accepted"
    manifest = Manifest.load(tmp_path)
    assert (manifest.temperature, manifest.top_k, manifest.top_p, manifest.seed) == (0.8, 0, 0.9, 4)
    part = select(found, [False, True, True])
    np.testing.assert_array_equal(part.sampled.survival, found.sampled.survival[found.offsets[1] :])


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 1.0}, {"seed": 5}])
def test_how_it_was_drawn_is_part_of_its_identity(changes: dict) -> None:
    other = replace(SAMPLED, **changes)
    assert other.fingerprint() != SAMPLED.fingerprint()
    with pytest.raises(TraceError, match=f"another run .{next(iter(changes))}: [^;]*;"):
        other.refuse_other(SAMPLED, "it is")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("acceptance", 1.5, "acceptance must be a chance"), ("survival", np.nan, r"survival must be a chance .*row 2\)")],
)
def test_chances_that_cannot_be_are_refused(name: str, value: float, message: str) -> None:
    record = sampled_records(1, 1, SAMPLED_LENGTH, GAMMA_MAX)[0]
    assert record.drafted[2] > 0
    column = getattr(record, name).copy()
    column[2] = value
    with pytest.raises(TraceError, match=message):
        replace(record, **{name: column}).validate()
