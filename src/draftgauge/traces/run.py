"""Recorded runs: a folder with its manifest, trace and costs, each read once and checked. No model is loaded."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from draftgauge.core.artefacts import Artefact
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.core.parts import COMPRESSIONS, UNCOMPRESSED, Compression, Rendering
from draftgauge.traces.costs import AGAIN, CostCurve
from draftgauge.traces.sampled import with_chances
from draftgauge.traces.shards import (
    GREEDY_VERSION,
    SAMPLED_VERSION,
    DamagedFileError,
    Shard,
    list_lengths,
    read_shard,
    shard_paths,
    to_padded,
)
from draftgauge.traces.trace import (
    CHANCES,
    COLUMNS,
    SIGNALS,
    PromptInfo,
    Trace,
    check_chances,
    check_rows,
    offsets_of,
    remaining_rows,
    select,
    take,
)

MANIFEST_NAME = "manifest.json"
COSTS_NAME = "costs.json"
CODE_OPTIONS = ("allow_pickle", "trust_remote_code")
MANIFEST = Artefact(
    "draftgauge-trace",
    1,
    "manifest of a trace",
    "move the folder away and record the trace again with `draftgauge profile`",
    error=TraceError,
)


@dataclass(frozen=True)
class ModelEntry:
    """A model of the run: ``source`` as it was asked for, ``fingerprint`` of its files, ``family`` the ``model_type``
    of its configuration. ``dtype`` is of its activations, ``attention`` the kernels if they were asked for."""

    source: str
    fingerprint: str
    compression: Compression
    family: str
    engine: str
    dtype: str
    attention: str = ""


@dataclass(frozen=True)
class PromptsEntry:
    """The prompt file as it was given, and the prompts to record (recorded, in a complete run) with their tasks."""

    path: str
    sha256: str
    count: int
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class OutputsEntry:
    """The file of answers that were recorded in place of outputs decoded by the target."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One run of recording.

    Attributes:
        draftgauge, command, created, environment: the version, command line, date (UTC, ISO 8601) and machine.
        target, draft: the models; ``draft`` is None for a drafter without one.
        temperature, top_k, top_p: that output and drafts were drawn with; temperature 0 is greedy decoding.
        outputs: the answers that were recorded; None where the target decoded.
        tokenizer: folder or id of the tokenizer, where it is not the target's own.
        rule: of a drafter without a model, what it does; runs of earlier versions do not say.
        allowed: which of ``CODE_OPTIONS`` the pair was loaded with; None in runs of earlier versions.
    """

    draftgauge: str
    command: str
    created: str
    environment: Mapping[str, Any]
    target: ModelEntry
    draft: ModelEntry | None
    drafter: str
    device: str
    gamma_max: int
    max_new_tokens: int
    seed: int
    prompts: PromptsEntry
    complete: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    rendering: Rendering = field(default_factory=Rendering)
    outputs: OutputsEntry | None = None
    tokenizer: str | None = None
    rule: str = ""
    allowed: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, least in (("gamma_max", 1), ("max_new_tokens", 1), ("top_k", 0)):
            if not least <= getattr(self, name) < 2**31:
                raise TraceError(f"{name} of a trace is {getattr(self, name)}, must be {least} or more")
        if not (0 <= self.temperature < math.inf and 0 < self.top_p <= 1):
            raise TraceError(f"a trace was not drawn at temperature {self.temperature} and top_p {self.top_p}")

    @property
    def code_options(self) -> tuple[str, ...]:
        """The options that let a checkpoint's code run, as the command line spells them."""
        allowed = self.command.replace("-", "_") if self.allowed is None else self.allowed
        return tuple(f"--{name.replace('_', '-')}" for name in CODE_OPTIONS if name in allowed)

    @property
    def pair(self) -> str:
        """Fingerprints of target and drafter, as a cost curve has them."""
        draft = self.drafter if self.draft is None else self.draft.fingerprint
        return f"{self.target.fingerprint}+{draft}"

    @property
    def drafts_with(self) -> str:
        """What drafted, as ``--drafter`` takes it."""
        return self.drafter if self.draft is None else self.draft.source

    def identity(self) -> dict[str, Any]:
        """What makes rows comparable: two runs that agree in it would record the same rows for the same prompt."""
        identity: dict[str, Any] = {
            "schema_version": SAMPLED_VERSION if self.temperature > 0 else GREEDY_VERSION,
            "drafter": self.drafter,
            "gamma_max": self.gamma_max,
            "max_new_tokens": self.max_new_tokens,
            "prompts.sha256": self.prompts.sha256,
            "rendering": to_mapping(self.rendering),
        }
        for role, model in (("target", self.target), ("draft", self.draft)):
            for name in ("fingerprint", "compression", "dtype"):
                identity[f"{role}.{name}"] = None if model is None else getattr(model, name)
        if self.temperature > 0:
            identity |= {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "seed")}
        if self.outputs is not None:
            identity["outputs.sha256"] = self.outputs.sha256
        return identity | ({"rule": self.rule} if self.rule else {})

    def fingerprint(self) -> str:
        # Shards carry this digest; in those of earlier versions it is of the name that ``uncompressed`` had.
        identity = {key: "none" if value == UNCOMPRESSED else value for key, value in self.identity().items()}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def refuse_other(self, other: Manifest, where: str) -> None:
        """Raise :class:`TraceError` naming what differs, if another run would not record the same rows of the same
        texts.

        A tokenizer that is not the target's own counts too: by its place, which is no part of the fingerprint.
        """
        mine, theirs = (each.identity() | {"tokenizer": _place(each.tokenizer)} for each in (self, other))
        for settings in (mine, theirs):
            settings.update(settings.pop("rendering", None) or {})
        if (self.temperature > 0) != (other.temperature > 0):
            mine, theirs = {"temperature": self.temperature}, {"temperature": other.temperature}
        listed = [
            f"{name}: {mine.get(name)!r}, not {theirs.get(name)!r}"
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]
        if listed:
            raise TraceError(f"{where} of another run ({'; '.join(listed)}); choose another folder, or remove it")

    def save(self, folder: Path) -> None:
        MANIFEST.write(folder / MANIFEST_NAME, to_mapping(self))

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read ``manifest.json`` of a run folder."""
        path = folder / MANIFEST_NAME
        if not path.exists():
            raise _no_run(folder)
        values = MANIFEST.read(path)
        try:
            return from_mapping(cls, values, str(path))
        except DraftgaugeError as error:
            raise TraceError(str(error)) from error


def _place(tokenizer: str | None) -> str | None:
    return str(Path(tokenizer).resolve()) if tokenizer and Path(tokenizer).exists() else tokenizer


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


def _run_folders(folder: Path) -> list[Path]:
    """The folder itself if it has a manifest, else its sub-folders that have one, by name."""
    if (folder / MANIFEST_NAME).is_file():
        return [folder]
    runs = sorted(child for child in folder.iterdir() if (child / MANIFEST_NAME).is_file()) if folder.is_dir() else []
    if not runs:
        raise _no_run(folder, ", nor in its sub-folders")
    return runs


def _no_run(folder: Path, nor: str = "") -> TraceError:
    said = f"{folder} is a file, no run's folder" if folder.is_file() else f"there is no folder {folder}"
    if folder.is_dir():
        said = f"{folder} holds no trace (no {MANIFEST_NAME}{nor})"
    return TraceError(f"{said}; record a run with `draftgauge profile`")


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
