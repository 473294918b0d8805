"""One shard of a trace: a Parquet file with whole prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.core.files import atomic_write_bytes
from draftgauge.traces.parquet import read_parquet
from draftgauge.traces.record import PromptRecord
from draftgauge.traces.schema import (
    FINGERPRINT_KEY,
    PROMPTS_KEY,
    SIGNALS,
    check_schema,
    leaf_paths,
    prompts_metadata,
    read_prompt_infos,
    to_table,
)
from draftgauge.traces.trace import PromptInfo

LEVEL = 9
"""Level of Zstandard: 5% smaller than its default, and as quick to read."""
_NAME = re.compile(r"positions-(\d{5,})\.parquet")


class DamagedShardError(TraceError):
    """A shard that does not hold what was written: truncated, or changed since."""


@dataclass(frozen=True)
class Shard:
    """A shard that was read and found whole.

    Attributes:
        path: its file.
        prompts: in the order of the rows.
        table: the columns of :data:`~draftgauge.traces.schema.COLUMNS`, one chunk each.
    """

    path: Path
    prompts: tuple[PromptInfo, ...]
    table: pa.Table


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a run folder, in the order of their numbers."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=shard_number)


def shard_number(path: Path) -> int:
    """``positions-00007.parquet`` -> 7."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def write_shard(folder: Path, number: int, records: Sequence[PromptRecord], fingerprint: str) -> Path:
    """Write whole prompts as shard ``number``, atomically.

    Raises:
        DraftgaugeError: if it cannot be written; no part of it is left.
    """
    return _write_table(folder, number, to_table(records, fingerprint))


def join_shards(folder: Path, target: Path, fingerprint: str) -> Path:
    """Write all shards of a run as the only one of another folder, prompts by index: smaller, and as quick to read.

    Raises:
        TraceError: if a shard is damaged or of another run; nothing is written.
        DraftgaugeError: if it cannot be written.
    """
    shards = [read_shard(path, fingerprint) for path in shard_paths(folder)]
    prompts = sorted((prompt for shard in shards for prompt in shard.prompts), key=lambda prompt: prompt.index)
    rows = pa.concat_tables(shard.table.replace_schema_metadata() for shard in shards)
    metadata = shards[0].table.schema.metadata | {PROMPTS_KEY: prompts_metadata(prompts)}
    ordered = rows.sort_by([("prompt_index", "ascending"), ("position", "ascending")])
    return _write_table(target, 0, ordered.replace_schema_metadata(metadata))


def _write_table(folder: Path, number: int, table: pa.Table) -> Path:
    """A table as shard ``number``, atomically."""
    path = folder / f"positions-{number:05d}.parquet"
    sink = pa.BufferOutputStream()
    columns = leaf_paths(table.schema)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=LEVEL,
        # The bytes of floating-point numbers, grouped by their significance, compress to half.
        use_dictionary=[path for path, kind in columns.items() if not pa.types.is_floating(kind)],
        column_encoding={path: "BYTE_STREAM_SPLIT" for path, kind in columns.items() if pa.types.is_floating(kind)},
        # Checksums: damage in the middle of a file would otherwise be read as other numbers.
        write_page_checksum=True,
        store_schema=False,  # Arrow's own copy of the schema would hold all prompts once more
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(table.schema.metadata)
    atomic_write_bytes(path, sink.getvalue().to_pybytes())
    return path


def read_shard(path: Path, fingerprint: str) -> Shard:
    """Read a shard and check that it is whole and of this run.

    Raises:
        DamagedShardError: naming the file and what is wrong with it.
        TraceError: if the file cannot be opened, is of another run or another schema version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from error
    try:
        table = read_parquet(content).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedShardError(f"{path} is truncated or damaged ({reason})") from error
    try:
        check_schema(table.schema)
    except TraceError as error:
        raise TraceError(f"{path} {error}") from error
    if table.schema.metadata.get(FINGERPRINT_KEY) != fingerprint.encode():
        raise TraceError(f"{path} belongs to another run than the manifest beside it; move it away")
    try:
        prompts = tuple(read_prompt_infos(table.schema))
        _check_rows_belong(table, prompts)
    except TraceError as error:
        raise DamagedShardError(f"{path} {error}") from error
    return Shard(path, prompts, table)


def list_lengths(table: pa.Table, column: str) -> NDArray[np.int64]:
    """``[P]`` elements of each list of a column."""
    lengths: NDArray[np.int64] = pc.list_value_length(table[column]).to_numpy().astype(np.int64)
    return lengths


def _check_rows_belong(table: pa.Table, prompts: Sequence[PromptInfo]) -> None:
    """The rows are exactly those that the prompts in the metadata promise, and no value is missing."""
    if not prompts:
        raise TraceError("names no prompts")
    for name in table.column_names:
        if table[name].null_count:
            raise TraceError(f"has missing values in the column {name}")
    lengths = [prompt.output_tokens for prompt in prompts]
    index = np.repeat([prompt.index for prompt in prompts], lengths)
    position = np.concatenate([np.arange(length) for length in lengths])
    if not np.array_equal(table["prompt_index"].to_numpy(), index) or not np.array_equal(
        table["position"].to_numpy(), position
    ):
        raise TraceError("does not hold whole prompts: its rows are not those that its metadata names")
    drafted = list_lengths(table, "draft_token")
    for name in SIGNALS:
        if not np.array_equal(list_lengths(table, name), drafted):
            raise TraceError(f"has another number of values in {name} than of drafted tokens")
