"""Parquet files with a digest over all of their bytes: columns, metadata and the footer that names them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from draftgauge.core.errors import TraceError
from draftgauge.core.files import atomic_write_bytes

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
