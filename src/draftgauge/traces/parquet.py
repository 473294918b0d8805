"""Parquet files read from bytes, checked, into memory that is Arrow's own."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq


def read_parquet(content: bytes) -> pa.Table:
    """The table in a Parquet file, its checksums verified.

    A thread of Arrow's pool may hold on to what it has read until the interpreter ends, and to let go of memory of
    Python's then aborts the process. So the bytes are copied first.

    Args:
        content: all bytes of the file.

    Raises:
        pyarrow.ArrowException, OSError: if the file is truncated, damaged or no Parquet file.
    """
    memory = pa.allocate_buffer(len(content))
    with pa.FixedSizeBufferWriter(memory) as writer:
        writer.write(content)
    return pq.ParquetFile(pa.BufferReader(memory), page_checksum_verification=True).read()
