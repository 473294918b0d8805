"""Recorded runs made small: a run is written shard by shard, so that a kill loses little, and kept as one."""

from __future__ import annotations

from pathlib import Path

from draftgauge.core.errors import TraceError
from draftgauge.core.files import atomic_write_bytes, require_writable
from draftgauge.traces.manifest import COSTS_NAME, MANIFEST_NAME, Manifest
from draftgauge.traces.shards import join_shards, shard_paths


def join_run(folder: Path, target: Path) -> None:
    """Write a complete run into another folder with a single shard; the rows and the cost curve are the same.

    Args:
        folder: the recorded run.
        target: created if need be. What it holds of the same run is written again.

    Raises:
        TraceError: if the run is incomplete or damaged, or ``target`` holds another one.
        DraftgaugeError: if ``target`` cannot be written to.
    """
    manifest = Manifest.load(folder)
    if not manifest.complete:
        raise TraceError(f"the trace in {folder} is incomplete: record it to its end first")
    require_writable(target)
    if (target / MANIFEST_NAME).exists():
        there = Manifest.load(target)
        if not there.goes_on(manifest):
            listed = "; ".join(there.differences(manifest))
            raise TraceError(f"{target} holds the trace of another run ({listed}); move it away")
    elif shard_paths(target):
        raise TraceError(f"{target} holds shards of a trace without their {MANIFEST_NAME}; move them away")
    written = join_shards(folder, target, manifest.fingerprint())
    for path in shard_paths(target):
        if path != written:
            path.unlink()
    if (folder / COSTS_NAME).exists():
        atomic_write_bytes(target / COSTS_NAME, (folder / COSTS_NAME).read_bytes())
    manifest.save(target)
