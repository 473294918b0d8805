"""Recorded runs: a folder with its manifest, trace and costs, each read once and checked. No model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.compressions import COMPRESSIONS, UNCOMPRESSED
from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.traces.costs import AGAIN, CostCurve
from draftgauge.traces.manifest import COSTS_NAME, MANIFEST_NAME, Manifest
from draftgauge.traces.sampled import with_chances
from draftgauge.traces.shards import DamagedFileError, Shard, list_lengths, read_shard, shard_paths, to_padded
from draftgauge.traces.trace import (
    CHANCES,
    COLUMNS,
    SIGNALS,
    PromptInfo,
    PromptRecord,
    Trace,
    check_chances,
    check_rows,
    offsets_of,
    remaining_rows,
    select,
    take,
)


@dataclass(frozen=True)
class Run:
    """A recorded run by its folder. What it holds is read when first asked for, and kept."""

    folder: Path

    def __fspath__(self) -> str:
        return str(self.folder)

    @classmethod
    def find(cls, folder: Path | str) -> list[Self]:
        """The run in a folder, or those in its sub-folders, by compression and name.

        Raises:
            TraceError: if there is none.
        """
        order = {name: position for position, name in enumerate(COMPRESSIONS)}
        runs = [cls(path) for path in _run_folders(Path(folder))]
        return sorted(runs, key=lambda run: (order.get(run.manifest.target.compression, len(order)), run.name))

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The only run in a folder or its sub-folders."""
        runs = cls.find(folder)
        if len(runs) > 1:
            names = ", ".join(str(run) for run in runs)
            raise DraftgaugeError(f"{folder} holds {len(runs)} runs: name one of them ({names})")
        return runs[0]

    def __str__(self) -> str:
        return str(self.folder)

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def manifest(self) -> Manifest:
        return Manifest.load(self.folder)

    @cached_property
    def trace(self) -> Trace:
        """The dense trace, with the prompts in the order of their indices.

        Raises:
            TraceError: if the folder holds no trace, or an incomplete or damaged one.
        """
        return _read(self.folder, self.manifest)

    @property
    def prompts(self) -> tuple[PromptInfo, ...]:
        return self.trace.prompts

    @cached_property
    def costs(self) -> CostCurve:
        """The cost curve, which may be of another device or engine than the trace; :meth:`read` then warns.

        Raises:
            TraceError: if it was not measured, or is of another pair or compression.
        """
        path, manifest = self.folder / COSTS_NAME, self.manifest
        curve = CostCurve.load(path)
        for name, value in (("compression", manifest.target.compression), ("pair", manifest.pair)):
            mine = getattr(curve, name)
            if mine and mine != value:
                raise TraceError(f"{path} is of {name} {mine}, the trace of {name} {value}; {AGAIN}")
        return replace(curve, engine=curve.engine or manifest.target.engine)

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Of the target and the draft that were recorded."""
        draft = None if self.manifest.draft is None else self.manifest.draft.fingerprint
        return {"target": self.manifest.target.fingerprint, "draft": draft}

    def read(self, tasks: Collection[str] | None = None) -> tuple[Trace, CostCurve]:
        """The trace of some tasks (all if None) and the costs; warns of costs from another device or engine."""
        trace, costs, manifest = self.of_tasks(tasks), self.costs, self.manifest
        measured, recorded = f"{costs.engine} on {costs.device}", f"{manifest.target.engine} on {manifest.device}"
        if measured != recorded:
            warn(f"the costs in {self} are of {measured}, its trace is of {recorded}: seconds are those of {measured}")
        return trace, costs

    def of_tasks(self, tasks: Collection[str] | None) -> Trace:
        """The prompts of these tasks, or all."""
        return select_tasks(self.trace, tasks, self.folder)


def read_trace(folder: Path | str, tasks: Collection[str] | None = None) -> Trace:
    """The trace in a run folder, with the prompts in the order of their indices.

    Raises:
        TraceError: if the folder holds no trace, an incomplete or damaged one, or none of the tasks.
    """
    return Run(Path(folder)).of_tasks(tasks)


def select_tasks(trace: Trace, tasks: Collection[str] | None, source: Path) -> Trace:
    """The prompts of these tasks, or all; ``source`` is named where one is not among them."""
    if not tasks:
        return trace
    known = {prompt.task for prompt in trace.prompts}
    if unknown := [task for task in tasks if task not in known]:
        raise TraceError(f"{source} holds no task {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return select(trace, [prompt.task in tasks for prompt in trace.prompts])


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


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself if it has a manifest, else its sub-folders that have one, by name."""
    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    if not folder.is_dir():
        raise TraceError(f"there is no folder {folder}; record a trace with `draftgauge profile`")
    runs = sorted(child for child in folder.iterdir() if (child / MANIFEST_NAME).is_file())
    if not runs:
        raise TraceError(
            f"{folder} holds no trace (no {MANIFEST_NAME}, nor in its sub-folders); record one with `draftgauge "
            "profile`"
        )
    return runs


def _read(folder: Path, manifest: Manifest) -> Trace:
    again = "ask for the same again" if "ipykernel" in manifest.command else f"run `{manifest.command}` again"
    try:
        shards = [read_shard(path, manifest.fingerprint()) for path in shard_paths(folder)]
    except DamagedFileError as error:
        raise TraceError(f"{error}; {again} to record its prompts anew") from error
    prompts = tuple(prompt for shard in shards for prompt in shard.prompts)
    indices, counts = np.unique([prompt.index for prompt in prompts], return_counts=True)
    if (counts > 1).any():
        raise TraceError(
            f"{folder} holds prompt {int(indices[counts > 1][0])} more than once; record the trace again into "
            "another folder"
        )
    if not manifest.complete or len(prompts) < manifest.prompts.count:
        raise TraceError(
            f"{folder} is incomplete: {len(prompts)} of {manifest.prompts.count} prompts are recorded; "
            f"{again} to finish"
        )
    if not prompts:
        raise TraceError(f"{folder} holds no recorded prompts; {again}")
    longest = max(prompts, key=lambda prompt: prompt.output_tokens)
    if longest.output_tokens > manifest.max_new_tokens:
        raise TraceError(
            f"{folder}: prompt {longest.index} has more output tokens than max_new_tokens ({manifest.max_new_tokens})"
        )
    parts = [_columns(shard, manifest.gamma_max) for shard in shards]
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    trace = Trace(
        prompts=prompts,
        offsets=offsets_of([prompt.output_tokens for prompt in prompts]),
        gamma_max=manifest.gamma_max,
        max_new_tokens=manifest.max_new_tokens,
        compression=manifest.target.compression,
        turns=manifest.rendering.turns,
        **{name: columns[name] for name in COLUMNS},
    )
    check_rows(trace, str(folder), remaining_rows(trace.offsets))
    if manifest.temperature > 0:
        acceptance, survival = (columns[name] for name in CHANCES)
        check_chances(acceptance, survival, trace.drafted > 0, str(folder))
        trace = with_chances(trace, acceptance, survival)
    return take(trace, np.argsort([prompt.index for prompt in prompts]))


def _columns(shard: Shard, gamma_max: int) -> dict[str, NDArray[Any]]:
    table = shard.table
    flat = [name for name in ("token", "target_entropy", "accepted", *CHANCES) if name in table.column_names]
    columns: dict[str, NDArray[Any]] = {name: table[name].to_numpy() for name in flat}
    columns["drafted"] = list_lengths(table, "draft_token").astype(np.int16)
    try:
        columns["draft_token"] = to_padded(table["draft_token"].chunk(0), gamma_max, -1, np.int32)
        for name in SIGNALS:
            columns[name] = to_padded(table[name].chunk(0), gamma_max, np.nan, np.float32)
    except TraceError as error:
        raise TraceError(f"{shard.path} {error}") from error
    return columns
