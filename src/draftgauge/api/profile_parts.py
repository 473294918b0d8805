"""A run recorded in parts by several workers, on this machine or a Ray cluster, and its costs measured by one alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile_plan import choose_prompts, encode_prompts
from draftgauge.api.recording import has_costs, measure_pair, missing_prompts, record_missing
from draftgauge.api.requests import ProfileRequest
from draftgauge.api.runs import EncodedPrompt
from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.executor import Job, Outcome, execute
from draftgauge.core.files import require_writable
from draftgauge.core.locks import only_writer
from draftgauge.core.progress import Progress
from draftgauge.models.compression import activation_dtype
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.parts import PATIENCE, join_parts, part_folder
from draftgauge.traces.writer import SHARD_PROMPTS, TraceWriter

RETRIES = 2  # of a part whose worker died; it goes on where it was


@dataclass(frozen=True)
class PartJob:
    """Records some prompts of a run into a part of it.

    Attributes:
        request: at one compression.
        manifest: of the run.
        folder: of the run.
        part: its number.
        indices: of the prompts.
    """

    request: ProfileRequest
    manifest: Manifest
    folder: Path
    part: int
    indices: tuple[int, ...]
    after: ClassVar[str | None] = None

    @property
    def name(self) -> str:
        """By its number."""
        return f"part {self.part}"

    def run(self, progress: Progress) -> None:
        """Record what of the part is missing."""
        folder = part_folder(self.folder, self.part)
        require_writable(folder)
        with only_writer(folder, PATIENCE):
            pair = load_pair(self.request.pair)
            _check_pair(pair, self.manifest)
            encoded = _encoded(pair, self.request, set(self.indices))
            prompts = replace(self.manifest.prompts, count=len(encoded))
            with TraceWriter(folder, replace(self.manifest, prompts=prompts, complete=False), SHARD_PROMPTS) as writer:
                record_missing(pair, writer, encoded, self.request, progress)


@dataclass(frozen=True)
class CostJob:
    """Measures what a step of a recorded run costs; nothing else runs beside it.

    Attributes:
        request: at one compression.
        manifest, folder: of the run.
        indices: of its prompts.
    """

    request: ProfileRequest
    manifest: Manifest
    folder: Path
    indices: tuple[int, ...]
    name: ClassVar[str] = "costs"
    after: ClassVar[str | None] = None

    def run(self, progress: Progress) -> None:
        """Measure and save."""
        pair = load_pair(self.request.pair)
        _check_pair(pair, self.manifest)
        encoded = _encoded(pair, self.request, set(self.indices))
        measure_pair(pair, encoded, self.request, progress, self.folder)


def record_in_parts(
    request: ProfileRequest, folder: Path, manifest: Manifest, encoded: Sequence[EncodedPrompt], progress: Progress
) -> None:
    """Record a run in parts, join them, then measure its costs.

    What an earlier, interrupted recording left in parts joins first, however many parts there were.

    Args:
        request: at one compression.
        folder: of the run.
        manifest: of the run.
        encoded: all of its prompts.
        progress: told (what, done, total).

    Raises:
        DraftgaugeError: if a part or the measuring failed; what was recorded is kept.
    """
    where = request.where
    request, folder = _from_anywhere(request), folder.absolute()
    writer = TraceWriter(folder, manifest, SHARD_PROMPTS)
    if join_parts(folder):
        writer = TraceWriter(folder, manifest, SHARD_PROMPTS)
    missing = [prompt.index for prompt, _ in missing_prompts(writer, encoded)]
    shares = [tuple(missing[part :: where.shards]) for part in range(where.shards)]
    jobs = [PartJob(request, manifest, folder, part, share) for part, share in enumerate(shares) if share]
    _execute(jobs, request, progress, f"parts {manifest.target.compression}", folder)
    if missing or request.costs.measure or not has_costs(writer, request):
        indices = tuple(prompt.index for prompt, _ in encoded)
        _execute([CostJob(request, manifest, folder, indices)], request, progress, "costs", folder)
    with TraceWriter(folder, manifest, SHARD_PROMPTS):
        pass  # complete with all prompts in it


def _from_anywhere(request: ProfileRequest) -> ProfileRequest:
    """The same request with whole paths: workers may run in other folders."""

    def whole(source: str | None) -> str | None:
        return str(Path(source).absolute()) if source and Path(source).exists() else source

    pair, prompts = request.pair, request.prompts
    if prompts.prompts is not None and Path(prompts.prompts).exists():
        prompts = replace(prompts, prompts=str(Path(prompts.prompts).absolute()))
    loading = replace(pair.loading, tokenizer=whole(pair.loading.tokenizer))
    pair = replace(
        pair, target=whole(pair.target), draft=whole(pair.draft), drafter=whole(pair.drafter), loading=loading
    )
    outputs = None if request.outputs is None else request.outputs.absolute()
    return replace(request, pair=pair, prompts=prompts, outputs=outputs)


def _execute(jobs: Sequence[Job], request: ProfileRequest, progress: Progress, label: str, folder: Path) -> None:
    where, ended = request.where, 0

    def finished(outcome: Outcome) -> None:
        nonlocal ended
        ended += 1
        progress(label, ended, len(jobs))

    outcomes = execute(jobs, where.executor, finished, where.cpus, where.gpus, progress, RETRIES)
    join_parts(folder)
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        raise DraftgaugeError(
            f"{failed[0].job} failed: {failed[0].message}. What was recorded is kept in {folder}: ask for the same "
            "again to go on from there"
        )


def _encoded(pair: Pair, request: ProfileRequest, indices: set[int]) -> list[EncodedPrompt]:
    path, chosen = choose_prompts(request.prompts)
    own = [prompt for prompt in chosen if prompt.index in indices]
    return encode_prompts(pair, own, path, request.output.max_new_tokens, request.prompts)


def _check_pair(pair: Pair, manifest: Manifest) -> None:
    """Check that a worker runs what the run's manifest says: it may find other models under the same names, another
    kind of device, or no library for the engine.

    Raises:
        TraceError: saying what differs.
    """
    fingerprints = pair.fingerprints()
    for role, entry in (("target", manifest.target), ("draft", manifest.draft)):
        if entry is not None and fingerprints[role] != entry.fingerprint:
            raise TraceError(f"the {role} at {entry.source} is another model for this worker than for the run")
    device = pair.target.spec.device
    dtype = str(activation_dtype(pair.compression, device)).removeprefix("torch.")
    compared = [
        ("device", device.type, torch.device(manifest.device).type),
        ("dtype", dtype, manifest.target.dtype),
        ("engine", pair.target.spec.engine, manifest.target.engine),
    ]
    if manifest.draft is not None:
        compared.append(("engine of the draft", pair.draft_source.engine, manifest.draft.engine))
    for what, own, of_run in compared:
        if own != of_run:
            raise TraceError(
                f"the {what} is {own} for this worker and {of_run} for the run: let its machine have what the driver's "
                "has (--gpus asks Ray for GPUs), or name a device and an engine that all have (--device, --engine)"
            )
