"""Writing a trace shard by shard, so that a run killed at any moment goes on where it stopped.

Several processes may record a run, each into a part under ``parts/``: a run folder with the same fingerprint. Its
shards hold whole prompts, so joining copies them under the next numbers, and a kill between two copies loses nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from draftgauge.core.errors import TraceError, warn
from draftgauge.core.files import append_lines, atomic_write_bytes, only_writer, remove_temporaries, require_writable
from draftgauge.core.parts import UNCOMPRESSED
from draftgauge.traces.run import MANIFEST_NAME, Manifest
from draftgauge.traces.sampled import with_chances
from draftgauge.traces.shards import (
    DamagedFileError,
    next_shard,
    read_shard,
    shard_paths,
    write_shard,
)
from draftgauge.traces.trace import (
    CHANCES,
    COLUMNS,
    PromptRecord,
    Trace,
    offsets_of,
)

SHARD_PROMPTS = 4  # a kill loses what was recorded of one shard


class TraceWriter:
    """Records prompts into a run folder; use it as a context manager.

    Every ``shard_prompts`` prompts become one file. Leaving the context writes what is still in memory, also after an
    error or Ctrl-C. Left without an error and with as many prompts as the manifest names, the trace is complete.

    Opening a folder that holds the same run (equal fingerprints) continues it: the prompts in ``done`` need not be
    recorded again. Damaged shards are removed with a warning, so that their prompts are recorded again.

    ``manifest`` is that in the folder: a continued run keeps the command and date of its start.
    """

    def __init__(self, folder: Path, manifest: Manifest, shard_prompts: int = SHARD_PROMPTS) -> None:
        assert shard_prompts > 0, shard_prompts
        self.folder = folder
        self._shard_prompts = shard_prompts
        self._wanted = manifest.prompts.count
        self._fingerprint = manifest.fingerprint()
        self._tasks: dict[int, str] = {}  # prompt index -> task, of the prompts in shards
        self._pending: list[PromptRecord] = []
        require_writable(folder)
        self._begun = not (folder / MANIFEST_NAME).exists()
        if not self._begun:
            self.manifest = Manifest.load(folder)
            self.manifest.refuse_other(manifest, f"{folder} holds the trace")
            remove_temporaries(folder)
            self._remove_damaged()
        elif shard_paths(folder):
            raise TraceError(f"{folder} holds shards of a trace without their {MANIFEST_NAME}; choose another folder")
        else:
            remove_temporaries(folder)
            self._save(replace(manifest, complete=False))

    @property
    def done(self) -> set[int]:
        return set(self._tasks)

    def add(self, record: PromptRecord) -> None:
        """Record one prompt, which is not recorded yet; earlier shards stay whole if its shard cannot be written."""
        record.validate()
        manifest, info = self.manifest, record.info
        assert record.gamma_max == manifest.gamma_max, (record.gamma_max, manifest.gamma_max)
        assert info.output_tokens <= manifest.max_new_tokens, info
        assert record.sampled == (manifest.temperature > 0), info
        assert info.index not in {*self._tasks, *(pending.info.index for pending in self._pending)}, info
        self._pending.append(record)
        if len(self._pending) >= self._shard_prompts:
            self._flush()

    def settle(self) -> None:
        self._wanted = len(self._tasks) + len(self._pending)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._flush()
        if error is not None and self._begun and not shard_paths(self.folder):
            (self.folder / MANIFEST_NAME).unlink(missing_ok=True)  # or the folder would be refused to another run
        if error is None and not self.manifest.complete and len(self._tasks) >= self._wanted:
            tasks = tuple(dict.fromkeys(task for _, task in sorted(self._tasks.items())))
            prompts = replace(self.manifest.prompts, count=len(self._tasks), tasks=tasks)
            self._save(replace(self.manifest, complete=True, prompts=prompts))

    def _remove_damaged(self) -> None:
        damaged: list[Path] = []
        for path in shard_paths(self.folder):
            try:
                prompts = read_shard(path, self._fingerprint).prompts
            except DamagedFileError as error:
                warn(f"{error}; it is removed and its prompts are recorded again")
                damaged.append(path)
                continue
            doubled = [prompt.index for prompt in prompts if prompt.index in self._tasks]
            if doubled:
                raise TraceError(
                    f"{path} holds prompt {doubled[0]}, as an earlier shard does; remove {path.name} and run again"
                )
            self._tasks.update((prompt.index, prompt.task) for prompt in prompts)
        if damaged:
            self._mark_incomplete()
        for path in damaged:
            path.unlink()

    def _flush(self) -> None:
        # Taken out first: an interrupt between the rename and the bookkeeping must not lead to writing them twice.
        records, self._pending = self._pending, []
        if not records:
            return
        self._mark_incomplete()
        write_shard(next_shard(self.folder), records, self._fingerprint)
        self._tasks.update((record.info.index, record.info.task) for record in records)

    def _mark_incomplete(self) -> None:
        # Before the folder changes: after a kill a trace must not be called complete when it is not.
        prompts = replace(self.manifest.prompts, count=max(self.manifest.prompts.count, self._wanted))
        incomplete = replace(self.manifest, complete=False, prompts=prompts)
        if incomplete != self.manifest:
            self._save(incomplete)

    def _save(self, manifest: Manifest) -> None:
        manifest.save(self.folder)
        self.manifest = manifest


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


def make_trace(records: Sequence[PromptRecord], max_new_tokens: int, compression: str = UNCOMPRESSED) -> Trace:
    """A trace in memory from valid records of one run, at least one, in the order given.

    ``max_new_tokens`` is the run's limit of output tokens, ``compression`` that of the target.
    """
    (gamma_max,) = {record.gamma_max for record in records}
    assert len({record.sampled for record in records}) == 1, "a trace is either greedy or sampled"
    for record in records:
        record.validate()
        assert record.info.output_tokens <= max_new_tokens, record.info
    columns: dict[str, Any] = {name: np.concatenate([getattr(record, name) for record in records]) for name in COLUMNS}
    trace = Trace(
        prompts=tuple(record.info for record in records),
        offsets=offsets_of([record.info.output_tokens for record in records]),
        gamma_max=gamma_max,
        max_new_tokens=max_new_tokens,
        compression=compression,
        **columns,
    )
    if not records[0].sampled:
        return trace
    return with_chances(trace, *(np.concatenate([getattr(record, name) for record in records]) for name in CHANCES))
