"""Reading traces: run folders into arrays, everything checked."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.errors import TraceError
from draftgauge.traces.build import CHANCES, COLUMNS, offsets_of, remaining_rows, select, take
from draftgauge.traces.checks import check_chances, check_rows
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest
from draftgauge.traces.parquet import DamagedFileError
from draftgauge.traces.sampled import with_chances
from draftgauge.traces.shards import Shard, list_lengths, read_shard, shard_paths, to_padded
from draftgauge.traces.trace import SIGNALS, Trace


def find_runs(folder: Path) -> list[Path]:
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


def read_trace(folder: Path | str, tasks: Collection[str] | None = None) -> Trace:
    """Read a run folder, with the prompts in the order of their indices.

    Raises:
        TraceError: if the folder holds no trace, an incomplete or damaged one, or none of the tasks.
    """
    folder = Path(folder)
    manifest = Manifest.load(folder)
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
    ordered = take(trace, np.argsort([prompt.index for prompt in prompts]))
    return select_tasks(ordered, tasks, folder)


def select_tasks(trace: Trace, tasks: Collection[str] | None, source: Path) -> Trace:
    """The prompts of these tasks, or all; ``source`` is named where one is not among them."""
    if not tasks:
        return trace
    known = {prompt.task for prompt in trace.prompts}
    if unknown := [task for task in tasks if task not in known]:
        raise TraceError(f"{source} holds no task {unknown[0]!r}; it has {', '.join(sorted(known))}")
    return select(trace, [prompt.task in tasks for prompt in trace.prompts])


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
