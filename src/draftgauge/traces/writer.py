"""Writing a trace shard by shard, so that a run killed at any moment goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from draftgauge.core.errors import TraceError, warn
from draftgauge.core.files import remove_temporaries, require_writable
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest
from draftgauge.traces.parquet import DamagedFileError
from draftgauge.traces.record import PromptRecord
from draftgauge.traces.shards import next_shard, read_shard, shard_paths, write_shard

SHARD_PROMPTS = 4  # a kill loses what was recorded of one shard


class TraceWriter:
    """Records prompts into a run folder; use it as a context manager.

    Every ``shard_prompts`` prompts become one file. Leaving the context writes what is still in memory, also after an
    error or Ctrl-C; left without an error and with as many prompts as the manifest names, the trace is complete.

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
        if (folder / MANIFEST_NAME).exists():
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
