from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import TraceError
from draftgauge.traces.run import read_trace
from draftgauge.traces.shards import read_parquet, read_shard, write_parquet, write_shard
from draftgauge.traces.trace import PromptInfo, PromptRecord, make_record
from draftgauge.traces.writer import make_trace
from synthetic import same_rows, synthetic_manifest, synthetic_records
from written_runs import write_records

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
