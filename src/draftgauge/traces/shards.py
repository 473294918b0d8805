"""One shard of a trace: a Parquet file with whole prompts, one row a position of their outputs.

Every Parquet file of the package carries a digest over all of its bytes: columns, metadata and the footer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from draftgauge.core.artefacts import parse_json
from draftgauge.core.config import from_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.files import atomic_write_bytes
from draftgauge.traces.trace import SIGNALS, PromptInfo, PromptRecord

GREEDY_VERSION = 1
SAMPLED_VERSION = 2
"""Versions of the columns: sampled decoding has two more. One is added when a column changes name, type or meaning."""

VERSION_KEY = b"draftgauge.schema_version"
FINGERPRINT_KEY = b"draftgauge.fingerprint"
PROMPTS_KEY = b"draftgauge.prompts"

COLUMNS = pa.schema(
    [
        pa.field("prompt_index", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("token", pa.int32()),
        pa.field("target_entropy", pa.float32()),
        pa.field("draft_token", pa.list_(pa.int32())),
        pa.field("confidence", pa.list_(pa.float32())),
        pa.field("entropy", pa.list_(pa.float32())),
        pa.field("margin", pa.list_(pa.float32())),
        pa.field("accepted", pa.int16()),
    ]
)
"""One row a position; the lists hold one element a drafted token. Shards of earlier versions have more columns."""

SAMPLED_COLUMNS = pa.schema([*COLUMNS, pa.field("acceptance", pa.float32()), pa.field("survival", pa.float32())])
"""Of sampled decoding, with the chances of :class:`~draftgauge.traces.trace.SampledDrafts`; its drafts are the refused
ones."""

_BY_VERSION = {GREEDY_VERSION: COLUMNS, SAMPLED_VERSION: SAMPLED_COLUMNS}
# Columns as Parquet names them, where lists are columns of their elements.
_INTEGERS = ["prompt_index", "position", "token", "accepted", "draft_token.list.element"]
_FLOATS = ["target_entropy", "acceptance", "survival", *(f"{name}.list.element" for name in SIGNALS)]
_NAME = re.compile(r"positions-\d{5,}\.parquet")
_COMPRESSION_LEVEL = 9  # of Zstandard: 5% smaller than its default, and as quick to read


@dataclass(frozen=True)
class Shard:
    """A shard that was read and found whole: its prompts in the order of the rows, and its columns, one chunk each."""

    path: Path
    prompts: tuple[PromptInfo, ...]
    table: pa.Table


def shard_paths(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_number)


def next_shard(folder: Path) -> Path:
    return folder / f"positions-{max(map(_number, shard_paths(folder)), default=-1) + 1:05d}.parquet"


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("positions-"))


def write_shard(path: Path, records: Sequence[PromptRecord], fingerprint: str) -> None:
    """Write whole prompts, atomically."""
    lengths = [record.info.output_tokens for record in records]
    draft_token = np.concatenate([record.draft_token for record in records])
    drafted = draft_token >= 0
    version = SAMPLED_VERSION if records[0].sampled else GREEDY_VERSION
    columns: dict[str, Any] = {
        "prompt_index": np.repeat(np.asarray([record.info.index for record in records], np.int32), lengths),
        "position": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        "draft_token": to_lists(draft_token, drafted),
    }
    for name in (name for name in _BY_VERSION[version].names if name not in columns):
        values = np.concatenate([getattr(record, name) for record in records])
        columns[name] = to_lists(values, drafted) if name in SIGNALS else values
    prompts = json.dumps([asdict(record.info) for record in records], separators=(",", ":"))
    metadata = {VERSION_KEY: str(version), FINGERPRINT_KEY: fingerprint, PROMPTS_KEY: prompts}
    schema = _BY_VERSION[version].with_metadata(metadata)
    write_parquet(
        path,
        pa.table([columns[name] for name in schema.names], schema=schema),
        compression_level=_COMPRESSION_LEVEL,
        # The bytes of floating-point numbers, grouped by their significance, compress to half.
        use_dictionary=_INTEGERS,
        column_encoding=dict.fromkeys(_FLOATS, "BYTE_STREAM_SPLIT"),
    )


def read_shard(path: Path, fingerprint: str) -> Shard:
    """Read a shard and check that it is whole and of this run."""
    try:
        table = read_parquet(path)
        _check_schema(table.schema)
        if table.schema.metadata.get(FINGERPRINT_KEY) != fingerprint.encode():
            raise TraceError("belongs to another run than the manifest beside it; move it away")
        prompts = _prompts_of(table)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    except TraceError as error:
        raise type(error)(f"{path} {error}") from error
    return Shard(path, prompts, table)


def _check_schema(schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode(errors="replace")
    known = next((columns for number, columns in _BY_VERSION.items() if str(number) == version), None)
    if known is None:
        raise TraceError(
            f"has columns of version {version or 'none'}, this draftgauge reads "
            f"{' and '.join(map(str, _BY_VERSION))}: read it with the draftgauge that wrote it, or record it again"
        )
    for field in known:
        if field.name not in schema.names:
            raise TraceError(f"lacks the column {field.name}")
        actual = schema.field(field.name).type
        if actual != field.type:
            raise TraceError(f"column {field.name} is {actual}, expected {field.type}")


def _prompts_of(table: pa.Table) -> tuple[PromptInfo, ...]:
    """The prompts that the metadata names: the rows are exactly theirs, and no value is missing."""
    try:
        entries = parse_json(table.schema.metadata[PROMPTS_KEY], "its prompts")
        prompts = tuple(from_mapping(PromptInfo, entry, "prompt") for entry in entries)
    except (DraftgaugeError, KeyError, TypeError) as error:
        raise DamagedFileError(f"has prompt metadata that cannot be read ({error})") from error
    for name in table.column_names:
        if table[name].null_count:
            raise DamagedFileError(f"has missing values in the column {name}")
    lengths = [prompt.output_tokens for prompt in prompts]
    if sum(lengths) != table.num_rows or not (
        np.array_equal(table["prompt_index"].to_numpy(), np.repeat([prompt.index for prompt in prompts], lengths))
        and np.array_equal(table["position"].to_numpy(), np.concatenate([np.arange(length) for length in lengths]))
    ):
        raise DamagedFileError("does not hold whole prompts: its rows are not those that its metadata names")
    drafted = list_lengths(table, "draft_token")
    for name in SIGNALS:
        if not np.array_equal(list_lengths(table, name), drafted):
            raise DamagedFileError(f"has another number of values in {name} than of drafted tokens")
    return prompts


def list_lengths(table: pa.Table, column: str) -> NDArray[np.int64]:
    """``[P]`` elements of each list of a column."""
    lengths: NDArray[np.int64] = pc.list_value_length(table[column]).to_numpy().astype(np.int64)
    return lengths


def to_lists(padded: NDArray[Any], present: NDArray[np.bool_]) -> pa.ListArray:
    """The present elements of each row, ``[P, G]`` -> ``P`` lists."""
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(padded[present]))


def to_padded(lists: pa.ListArray, width: int, fill: float, dtype: type[np.generic]) -> NDArray[Any]:
    """Inverse of :func:`to_lists`: ``P`` lists -> ``[P, width]`` with ``fill`` behind each."""
    lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
    if lengths.size and lengths.max() > width:
        raise TraceError(f"has a draft of {int(lengths.max())} tokens, longer than gamma_max {width}")
    values = lists.flatten()
    if values.null_count:
        raise TraceError("has missing values in its drafts")
    padded = np.full((len(lists), width), fill, dtype)
    padded[np.arange(width) < lengths[:, None]] = values.to_numpy(zero_copy_only=False)
    return padded


_KEY = b"draftgauge.sha256"
_MARK = b"draftgauge-sha256:"  # the digest follows it in the footer
_BLANK = b"0" * 64  # what the digest is taken over in its own place


class DamagedFileError(TraceError):
    """A file that does not hold what was written: truncated, or changed since. The message goes behind its name."""


def write_parquet(path: Path, table: pa.Table, **options: Any) -> None:
    """Write a table and its schema's metadata, atomically."""
    sink = pa.BufferOutputStream()
    # Without Arrow's own copy of the schema, which would hold all metadata once more.
    with pq.ParquetWriter(sink, table.schema, compression="zstd", store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({**(table.schema.metadata or {}), _KEY: _MARK + _BLANK})
    content = sink.getvalue().to_pybytes()
    start = content.rindex(_MARK) + len(_MARK)
    digest = hashlib.sha256(content).hexdigest().encode()
    atomic_write_bytes(path, content[:start] + digest + content[start + len(digest) :])


def read_parquet(path: Path) -> pa.Table:
    """The table in a file of :func:`write_parquet`, one chunk a column."""
    content = path.read_bytes()
    start = content.rfind(_MARK) + len(_MARK)
    if start < len(_MARK):
        raise DamagedFileError("is truncated or damaged, or of an earlier version of draftgauge (it has no checksum)")
    digest, blanked = content[start : start + 64], content[:start] + _BLANK + content[start + 64 :]
    if hashlib.sha256(blanked).hexdigest().encode() != digest:
        raise DamagedFileError("is truncated or damaged (its content does not match its checksum)")
    # Copied into memory of Arrow's own: a thread of its pool may hold on to what it has read until the interpreter
    # ends, and to let go of memory of Python's then aborts the process.
    memory = pa.allocate_buffer(len(content))
    with pa.FixedSizeBufferWriter(memory) as writer:
        writer.write(content)
    try:
        return pq.ParquetFile(pa.BufferReader(memory)).read().combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise DamagedFileError(f"cannot be read ({str(error).partition(chr(10))[0]})") from error
