"""A run that several processes record: each into a part of its own, whose whole shards then join the run.

A part is a run folder of its own with the same fingerprint, under ``parts/``. Its shards hold whole prompts, so joining
is copying them under the next numbers; a kill between two copies leaves a run that goes on from there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from draftgauge.core.errors import TraceError
from draftgauge.core.files import append_lines, atomic_write_bytes
from draftgauge.core.locks import only_writer
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest
from draftgauge.traces.parquet import DamagedFileError
from draftgauge.traces.shards import next_shard, read_shard, shard_paths

PARTS = "parts"
PATIENCE = 60.0  # seconds that a worker whose driver died may take to end


def part_folder(run: Path, part: int) -> Path:
    return run / PARTS / f"{part:04d}"


def join_parts(run: Path) -> None:
    """Copy the shards of all parts of a run into it, then remove the parts."""
    parts = sorted(path for path in (run / PARTS).glob("*") if (path / MANIFEST_NAME).exists())
    if not parts:
        return
    manifest = Manifest.load(run)
    fingerprint = manifest.fingerprint()
    done = {prompt.index for path in shard_paths(run) for prompt in read_shard(path, fingerprint).prompts}
    for part in parts:
        Manifest.load(part).refuse_other(manifest, f"{part} is a part")
        with only_writer(part, PATIENCE):
            for path in shard_paths(part):
                try:
                    prompts = {prompt.index for prompt in read_shard(path, fingerprint).prompts}
                except DamagedFileError:  # its prompts are recorded again
                    continue
                if prompts <= done:  # copied before a kill
                    continue
                if prompts & done:
                    raise TraceError(
                        f"{path} holds prompt {min(prompts & done)}, as another shard of {run} does, and prompt "
                        f"{min(prompts - done)}, which none does: parts must not overlap; remove {part}"
                    )
                atomic_write_bytes(next_shard(run), path.read_bytes())
                done |= prompts
            for notes in sorted(part.glob("*.jsonl")):  # lines that were noted of single prompts
                append_lines(run / notes.name, notes.read_text(encoding="utf-8"))
        shutil.rmtree(part)
    shutil.rmtree(run / PARTS, ignore_errors=True)
