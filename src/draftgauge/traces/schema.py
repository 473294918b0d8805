"""The columns of a trace on disk, versioned, and how records become tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from draftgauge.core.config import from_mapping
from draftgauge.core.errors import TraceError
from draftgauge.traces.record import PromptRecord
from draftgauge.traces.trace import PromptInfo

GREEDY_VERSION = 1
SAMPLED_VERSION = 2
VERSIONS = (GREEDY_VERSION, SAMPLED_VERSION)
"""Versions of the schema that are read and written: greedy decoding has the columns of 1, sampled decoding also those
that 2 adds.

A version is added whenever a column changes its name, type or meaning."""

VERSION_KEY = b"draftgauge.schema_version"
FINGERPRINT_KEY = b"draftgauge.fingerprint"
PROMPTS_KEY = b"draftgauge.prompts"

SIGNALS = ("confidence", "entropy", "margin")

COLUMNS = pa.schema(
    [
        pa.field("prompt_index", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("token", pa.int32()),
        pa.field("text", pa.string()),
        pa.field("target_entropy", pa.float32()),
        pa.field("draft_token", pa.list_(pa.int32())),
        pa.field("confidence", pa.list_(pa.float32())),
        pa.field("entropy", pa.list_(pa.float32())),
        pa.field("margin", pa.list_(pa.float32())),
        pa.field("accepted", pa.int16()),
    ]
)
"""One row a position; the lists hold one element a drafted token."""

SAMPLED_ONLY = tuple(pa.field(name, pa.float32()) for name in ("acceptance", "survival"))
"""What version 2 has besides: the chances of :class:`~draftgauge.traces.trace.SampledDrafts`. Its drafts are the
refused ones.
"""


def columns_of(version: int) -> pa.Schema:
    """The columns of a schema version."""
    return pa.schema([*COLUMNS, *SAMPLED_ONLY]) if version == SAMPLED_VERSION else COLUMNS


def to_table(records: Sequence[PromptRecord], fingerprint: str) -> pa.Table:
    """The positions of some prompts, with the prompts and the run's fingerprint in the metadata.

    Args:
        records: whole prompts, each valid, all greedy or all of sampled decoding.
        fingerprint: of the run, see :meth:`~draftgauge.traces.manifest.Manifest.fingerprint`.
    """
    lengths = [record.info.output_tokens for record in records]
    draft_token = np.concatenate([record.draft_token for record in records])
    drafted = draft_token >= 0
    columns: dict[str, Any] = {
        "prompt_index": np.repeat(np.asarray([record.info.index for record in records], np.int32), lengths),
        "position": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        "token": np.concatenate([record.token for record in records]),
        "text": pa.array([piece for record in records for piece in record.text], pa.string()),
        "target_entropy": np.concatenate([record.target_entropy for record in records]),
        "draft_token": to_lists(draft_token, drafted),
        "accepted": np.concatenate([record.accepted for record in records]),
    }
    for name in SIGNALS:
        columns[name] = to_lists(np.concatenate([getattr(record, name) for record in records]), drafted)
    version = SAMPLED_VERSION if records[0].sampled else GREEDY_VERSION
    for field in SAMPLED_ONLY if version == SAMPLED_VERSION else ():
        columns[field.name] = np.concatenate([getattr(record, field.name) for record in records])
    metadata = {
        VERSION_KEY: str(version).encode(),
        FINGERPRINT_KEY: fingerprint.encode(),
        PROMPTS_KEY: prompts_metadata([record.info for record in records]),
    }
    schema = columns_of(version).with_metadata(metadata)
    return pa.table([columns[name] for name in schema.names], schema=schema)


def prompts_metadata(prompts: Sequence[PromptInfo]) -> bytes:
    """What a file's metadata says of its prompts, in the order of its rows."""
    return json.dumps([asdict(prompt) for prompt in prompts], separators=(",", ":")).encode()


def leaf_paths(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The columns as Parquet names them, those of lists by their elements, with their types."""
    return {
        f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name: (
            field.type.value_type if pa.types.is_list(field.type) else field.type
        )
        for field in schema
    }


def to_lists(padded: NDArray[Any], present: NDArray[np.bool_]) -> pa.ListArray:
    """The present elements of each row, ``[P, G]`` -> ``P`` lists."""
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(padded[present]))


def to_padded(lists: pa.ListArray, width: int, fill: float, dtype: type[np.generic]) -> NDArray[Any]:
    """Inverse of :func:`to_lists`: ``P`` lists -> ``[P, width]`` with ``fill`` behind each.

    Raises:
        TraceError: if a list is longer than ``width`` or holds a null.
    """
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if lengths.size and lengths.max() > width:
        raise TraceError(f"has a draft of {int(lengths.max())} tokens, longer than gamma_max {width}")
    values = lists.flatten()
    if values.null_count:
        raise TraceError("has missing values in its drafts")
    padded = np.full((len(lists), width), fill, dtype)
    padded[np.arange(width) < lengths[:, None]] = values.to_numpy(zero_copy_only=False)
    return padded


def check_schema(schema: pa.Schema) -> None:
    """Raise :class:`TraceError` if a file's columns are not those of its version, or its version is unknown."""
    metadata = schema.metadata or {}
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise TraceError("is a Parquet file, but not one of a trace (it names no schema version)")
    versions = {str(number).encode(): number for number in VERSIONS}
    if version not in versions:
        raise TraceError(unknown_version(version.decode(errors="replace")))
    for field in columns_of(versions[version]):
        if field.name not in schema.names:
            raise TraceError(f"lacks the column {field.name}")
        actual = schema.field(field.name).type
        if actual != field.type:
            raise TraceError(f"column {field.name} is {actual}, expected {field.type}")


def unknown_version(version: object) -> str:
    """What to say of a schema version that this draftgauge does not read."""
    advice = "read it with the draftgauge that wrote it, or record it again"
    return f"has schema version {version}, this draftgauge reads {' and '.join(map(str, VERSIONS))}: {advice}"


def read_prompt_infos(schema: pa.Schema) -> list[PromptInfo]:
    """The prompts named in a file's metadata, in the order of its rows.

    Raises:
        TraceError: if they are missing or not what they should be.
    """
    try:
        entries = json.loads((schema.metadata or {})[PROMPTS_KEY])
        return [from_mapping(PromptInfo, entry, "prompt") for entry in entries]
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"has prompt metadata that cannot be read ({error})") from error
