from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftgauge.core.errors import TraceError
from draftgauge.traces.build import make_trace
from draftgauge.traces.reader import read_texts, read_trace
from draftgauge.traces.record import PromptRecord, make_record
from draftgauge.traces.schema import COLUMNS, check_schema, read_prompt_infos, to_lists, to_padded, to_table
from draftgauge.traces.trace import PromptInfo
from draftgauge.traces.writer import TraceWriter
from synthetic import same_rows, synthetic_manifest, synthetic_records

tokens = st.integers(0, 2**31 - 1) | st.integers(0, 2)
probabilities = st.floats(0, 1, width=32)
bits = st.floats(0, 100, width=32)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@st.composite
def records(draw: st.DrawFn, index: int, gamma_max: int) -> PromptRecord:
    """Any record, with empty drafts and one-token outputs among them."""
    token = draw(st.lists(tokens, min_size=1, max_size=6))
    drafts = [draw(st.lists(tokens, max_size=gamma_max)) for _ in token]
    signals = [
        [draw(st.lists(values, min_size=len(d), max_size=len(d))) for d in drafts]
        for values in (probabilities, bits, probabilities)
    ]
    info = PromptInfo(
        index=index,
        identifier=draw(words),
        task=draw(words),
        split=draw(words),
        prompt_tokens=draw(st.integers(1, 10**6)),
        output_tokens=len(token),
        finish=draw(st.sampled_from(["length", "stop"])),
    )
    text = [draw(words) for _ in token]
    return make_record(info, token, drafts, gamma_max, *signals, target_entropy=[draw(bits) for _ in token], text=text)


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
        with TraceWriter(folder, manifest, shard_prompts) as writer:
            for record in run:
                writer.add(record)
        by_index = sorted(run, key=lambda record: record.info.index)
        assert same_rows(read_trace(folder), make_trace(by_index, 6))
        for record in run:
            assert read_texts(folder, record.info.index) == record.text


def test_the_columns_of_version_1_stay_as_they_are() -> None:
    assert {field.name: str(field.type) for field in COLUMNS} == {
        "prompt_index": "int32",
        "position": "int32",
        "token": "int32",
        "text": "string",
        "target_entropy": "float",
        "draft_token": "list<item: int32>",
        "confidence": "list<item: float>",
        "entropy": "list<item: float>",
        "margin": "list<item: float>",
        "accepted": "int16",
    }


def test_lists_and_padding_are_inverse() -> None:
    padded = np.asarray([[1, 2, 3], [-1, -1, -1], [4, -1, -1]], np.int32)
    lists = to_lists(padded, padded >= 0)
    assert lists.to_pylist() == [[1, 2, 3], [], [4]]
    np.testing.assert_array_equal(to_padded(lists, 3, -1, np.int32), padded)
    np.testing.assert_array_equal(to_padded(lists[1:], 4, -1, np.int32), [[-1] * 4, [4, -1, -1, -1]])
    with pytest.raises(TraceError, match="a draft of 3 tokens, longer than gamma_max 2"):
        to_padded(lists, 2, -1, np.int32)
    with pytest.raises(TraceError, match="missing values in its drafts"):
        to_padded(pa.array([[1, None]], pa.list_(pa.int32())), 2, -1, np.int32)


def test_other_columns_and_versions_are_named() -> None:
    table = to_table(synthetic_records(0, 2, 5, 3), "f")
    check_schema(table.schema)
    with pytest.raises(TraceError, match="lacks the column margin"):
        check_schema(table.schema.remove(table.schema.get_field_index("margin")))
    with pytest.raises(TraceError, match="column accepted is int64, expected int16"):
        check_schema(table.schema.set(9, pa.field("accepted", pa.int64())))
    with pytest.raises(TraceError, match="names no schema version"):
        check_schema(table.schema.remove_metadata())
    later = {**table.schema.metadata, b"draftgauge.schema_version": b"9"}
    with pytest.raises(TraceError, match="has schema version 9, this draftgauge reads 1"):
        check_schema(table.schema.with_metadata(later))
    broken = {**table.schema.metadata, b"draftgauge.prompts": b'[{"index": 1}]'}
    with pytest.raises(TraceError, match=r"prompt metadata that cannot be read .*'finish'"):
        read_prompt_infos(table.schema.with_metadata(broken))
