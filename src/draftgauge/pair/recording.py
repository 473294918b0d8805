"""Recording the prompts of one run, here or in parts by several workers, and measuring its costs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from draftgauge.core.errors import DraftgaugeError, TraceError
from draftgauge.core.executor import Job, Outcome, execute
from draftgauge.core.files import file_sha256, only_writer, require_writable
from draftgauge.core.parts import derive_seed, generator, held_as
from draftgauge.core.progress import Progress
from draftgauge.core.prompts import Prompt, in_turn, prompts_sha256
from draftgauge.core.provenance import command_line, environment, timestamp
from draftgauge.decoding.recorder import Answer, RecordingPlan, record_answer, record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.base import Drafter
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.meter import BatchMeterPlan, MeterPlan, default_contexts, measure_batches
from draftgauge.models.device import draft_compression, peak_memory_gib
from draftgauge.models.engines.lean import LeanModel
from draftgauge.models.engines.static import check_caches_fit
from draftgauge.models.loading import engine_at, planned_dtype
from draftgauge.models.tokenizer import vocabulary_digest
from draftgauge.pair.costs import experts_read, keep_costs, measured
from draftgauge.pair.loading import Pair, load_pair, sampling_of
from draftgauge.pair.prompts import EncodedPrompt, choose_prompts, encode_prompts, prompt_name
from draftgauge.pair.served import note_differences, usable_answers
from draftgauge.requests import ProfileRequest
from draftgauge.traces.run import CODE_OPTIONS, COSTS_NAME, Manifest, ModelEntry, OutputsEntry, PromptsEntry, Run
from draftgauge.traces.writer import PATIENCE, TraceWriter, join_parts, part_folder

LLAMA_CPP = "llama.cpp"  # in a manifest's environment: its instruction sets
RETRIES = 2  # of a part whose worker died; it goes on where it was


def make_manifests(pair: Pair, prompts: Sequence[Prompt], path: Path, request: ProfileRequest) -> dict[str, Manifest]:
    """The manifest of the run of each compression, from a pair loaded at the first of them."""
    device = pair.target.spec.device
    fingerprints = pair.fingerprints()
    machine = environment()
    kernels = pair.target.spec.kernels or ("" if pair.draft is None else pair.draft.spec.kernels)
    machine |= {LLAMA_CPP: kernels} if kernels else {}
    outputs = None if request.outputs is None else OutputsEntry(str(request.outputs), file_sha256(request.outputs))

    def entry(role: str, model: Any, attention: str, compression: str) -> ModelEntry:
        source, fingerprint = pair.target_name if role == "target" else pair.draft_name, fingerprints[role]
        assert source is not None
        assert fingerprint is not None
        loaded = (pair.target_name, "target")  # drafters without a model of their own use the target's dtype
        if role == "draft" and isinstance(pair.draft_source, LanguageModelSource):
            loaded = (str(pair.draft_source.source), "draft")
        dtype = str(planned_dtype(loaded[0], compression, device, loaded[1])).removeprefix("torch.")
        known = pair.compression if role == "target" and request.pair.loading.engine == "auto" else compression
        engine = engine_at(model.engine, known, compression, device)
        return ModelEntry(source, fingerprint, compression, model.family, engine, dtype, attention)

    def manifest(compression: str) -> Manifest:
        draft = None
        if pair.draft_name is not None:
            attention = "" if pair.draft is None else pair.draft.spec.attention
            held = held_as(compression, pair.draft_source.engine)
            draft = entry("draft", pair.draft_source, attention, draft_compression(held))
        return Manifest(
            draftgauge=machine["versions"].get("draftgauge", "not installed"),
            command=command_line(),
            created=timestamp(),
            environment=machine,
            target=entry("target", pair.target.spec, pair.target.spec.attention, compression),
            draft=draft,
            drafter=pair.draft_source.name,
            device=str(device),
            gamma_max=request.drafts.gamma_max,
            max_new_tokens=request.output.max_new_tokens,
            seed=request.randomness.seed,
            prompts=PromptsEntry(
                prompt_name(path), prompts_sha256(path), len(prompts), tuple(dict.fromkeys(p.task for p in prompts))
            ),
            temperature=request.sampling.temperature,
            top_k=request.sampling.top_k,
            top_p=request.sampling.top_p,
            rendering=request.prompts.rendering,
            outputs=outputs,
            tokenizer=request.pair.loading.tokenizer,
            rule=(draft is None and fingerprints["draft"]) or "",
            allowed=tuple(name for name in CODE_OPTIONS if getattr(request.pair.loading, name)),
        )

    return {compression: manifest(compression) for compression in request.pair.compression}


def missing_prompts(writer: TraceWriter, encoded: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    done = writer.done
    return [(prompt, tokens) for prompt, tokens in encoded if prompt.index not in done]


def has_costs(writer: TraceWriter, request: ProfileRequest) -> bool:
    """Whether what the request asks for has been measured."""
    try:
        costs = Run(writer.folder).costs
    except TraceError:  # not measured yet, damaged, or of another pair
        return False
    measured = () if costs.batched is None else costs.batched.batches
    return costs.gamma_max == writer.manifest.gamma_max and set(request.batches) <= set(measured)


def record_missing(
    pair: Pair,
    writer: TraceWriter,
    encoded: Sequence[EncodedPrompt],
    request: ProfileRequest,
    progress: Progress,
    answers: Mapping[int, Answer] | None = None,
) -> bool:
    """Record missing prompts inside the writer's context; returns whether any was recorded.

    ``answers`` are known outputs of the target by prompt index, which are then not decoded.
    """
    sampling, limit = sampling_of(request.sampling, pair.target_name), request.output.max_new_tokens
    plan = RecordingPlan(DecodingSettings(limit, sampling, pair.end_tokens), request.drafts.gamma_max)
    if request.outputs is not None and answers is None:  # in a part, by another process
        answers = usable_answers(request.outputs, encoded, pair.tokenizer, pair.end_tokens, limit).answers
    missing = missing_prompts(writer, encoded)
    before, label = len(encoded) - len(missing), f"record {pair.compression}"
    done = before
    until = None
    if request.seconds is not None:
        until = time.monotonic() + request.seconds
        by_index = {prompt.index: (prompt, tokens) for prompt, tokens in missing}
        missing = [by_index[prompt.index] for prompt in in_turn(prompt for prompt, _ in missing)]
    progress(label, done, len(encoded))
    drafter: Drafter | None = None
    for prompt, tokens in missing:
        if until is not None and done and time.monotonic() > until:
            writer.settle()
            break
        # Each prompt has its own generator, as a run may be resumed anywhere.
        drawing = pair.generator(sampling, derive_seed(request.randomness.seed, "record", prompt.index))
        if drafter is None or drawing is not None:
            drafter = pair.drafter(sampling, drawing)
        if answers is None:
            writer.add(record_prompt(pair.target, drafter, prompt, tokens, plan, drawing))
        else:
            answer = answers[prompt.index]
            if pair.draft_source.tap_plan is not None:  # the target has to take it in
                answer = replace(answer, entropy=None)
            record, differs = record_answer(pair.target, drafter, (prompt, tokens), answer, plan)
            if request.outputs is not None:
                note_differences(writer.folder, prompt.index, differs, len(answer.tokens))
            writer.add(record)
        done += 1
        progress(label, done, len(encoded))
    return done > before


def measure_pair(
    pair: Pair, encoded: Sequence[EncodedPrompt], request: ProfileRequest, progress: Progress, run: Path
) -> None:
    """Measure a run's cost curve at the context lengths of these prompts; it is saved before batches are measured."""
    lengths = [len(tokens) for _, tokens in encoded]
    plan = MeterPlan(
        text=[token for _, tokens in encoded for token in tokens],
        contexts=default_contexts(lengths, [request.output.max_new_tokens] * len(lengths)),
        gamma_max=request.drafts.gamma_max,
        seconds=request.costs.cost_seconds,
        context_limit=pair.context,
        compression=pair.compression,
        vocabulary=vocabulary_digest(pair.tokenizer),
        sampling=sampling_of(request.sampling, pair.target_name),
    )
    curve = measured(pair, plan, request.randomness.seed, progress)
    if not curve.doubt():
        keep_costs(pair, curve, plan.sampling)
    experts = experts_read(pair.target, plan.text, curve.gamma_max + 1)
    peak = peak_memory_gib(pair.target.spec.device)
    curve = replace(curve, pair=Run(run).manifest.pair, experts=experts, peak_memory_gib=peak)
    with suppress(TraceError):  # what batches cost is kept until it is measured again
        before = Run(run).costs
        same = (before.device, before.engine) == (curve.device, curve.engine)
        curve = replace(curve, batched=before.batched if same else None)
    curve.save(run / COSTS_NAME)
    if not request.batches:
        return
    target, draft = batch_models(pair)
    of_batches = BatchMeterPlan(
        plan.text, request.batches, plan.contexts, plan.gamma_max, plan.seconds / len(request.batches)
    )
    rng = generator(request.randomness.seed, "batches", pair.compression)
    label = f"batches {pair.compression}"
    batched = measure_batches(target, draft, of_batches, rng, lambda done, total: progress(label, done, total))
    replace(curve, batched=batched).save(run / COSTS_NAME)


def check_batches(pair: Pair, batches: Sequence[int], longest: int) -> None:
    if batches:
        check_caches_fit([(model, min(longest, model.spec.context)) for model in batch_models(pair)], max(batches))


def batch_models(pair: Pair) -> tuple[LeanModel, LeanModel]:
    """Target and draft, as batches run them."""
    target, draft = pair.target, pair.draft
    if not isinstance(pair.draft_source, LanguageModelSource) or draft is None:
        raise DraftgaugeError(
            f"batches are decoded with a draft model, and {pair.draft_source.name} drafts here: leave out --batches"
        )
    if not isinstance(target, LeanModel) or not isinstance(draft, LeanModel):
        raise DraftgaugeError(
            f"batches run on the engines lean and static, and target and draft run on {target.spec.engine} and "
            f"{draft.spec.engine}: leave out --batches"
        )
    return target, draft


@dataclass(frozen=True)
class _Part:
    """A job of a worker on some prompts of a run; ``request`` is at one compression."""

    name: str
    request: ProfileRequest
    manifest: Manifest
    folder: Path
    indices: tuple[int, ...]
    after: ClassVar[str | None] = None

    def load(self) -> tuple[Pair, list[EncodedPrompt]]:
        pair = load_pair(self.request.pair)
        _check_same(pair, self.manifest)
        path, chosen = choose_prompts(self.request.prompts)
        own = [prompt for prompt in chosen if prompt.index in self.indices]
        return pair, encode_prompts(pair.encoder, own, path, self.request.output.max_new_tokens, self.request.prompts)


@dataclass(frozen=True)
class PartJob(_Part):
    """Records what of its prompts is missing into a part of the run."""

    number: int = 0

    def run(self, progress: Progress) -> None:
        folder = part_folder(self.folder, self.number)
        require_writable(folder)
        with only_writer(folder, PATIENCE):
            pair, encoded = self.load()
            prompts = replace(self.manifest.prompts, count=len(encoded))
            manifest = replace(self.manifest, prompts=prompts, complete=False)
            with TraceWriter(folder, manifest) as writer:
                record_missing(pair, writer, encoded, self.request, progress)


@dataclass(frozen=True)
class CostJob(_Part):
    """Measures what a step of a recorded run costs; nothing else runs beside it."""

    def run(self, progress: Progress) -> None:
        pair, encoded = self.load()
        measure_pair(pair, encoded, self.request, progress, self.folder)


def record_in_parts(
    request: ProfileRequest, folder: Path, manifest: Manifest, encoded: Sequence[EncodedPrompt], progress: Progress
) -> None:
    """Record a run, at one compression, in parts, join them, then measure its costs.

    What an earlier, interrupted recording left in parts joins first, however many parts there were. What was recorded
    is kept if a part or the measuring fails.
    """
    request, folder = _with_absolute_paths(request), folder.absolute()
    where = request.where

    def run(jobs: Sequence[Job], label: str) -> None:
        ended = 0

        def finished(outcome: Outcome) -> None:
            nonlocal ended
            ended += 1
            progress(label, ended, len(jobs))

        outcomes = execute(jobs, where.executor, finished, where.cpus, where.gpus, progress, RETRIES)
        join_parts(folder)
        if failed := [outcome for outcome in outcomes if outcome.error]:
            raise DraftgaugeError(
                f"{failed[0].job} failed: {failed[0].message}. What was recorded is kept in {folder}: ask for the same "
                "again to go on from there"
            )

    TraceWriter(folder, manifest)  # which checks the folder before parts join it
    join_parts(folder)
    writer = TraceWriter(folder, manifest)
    missing = [prompt.index for prompt, _ in missing_prompts(writer, encoded)]
    shares = [tuple(missing[number :: where.shards]) for number in range(where.shards)]
    parts = [PartJob(f"part {n}", request, manifest, folder, share, n) for n, share in enumerate(shares) if share]
    run(parts, f"parts {manifest.target.compression}")
    if missing or request.costs.measure or not has_costs(writer, request):
        indices = tuple(prompt.index for prompt, _ in encoded)
        run([CostJob("costs", request, manifest, folder, indices)], "costs")
    with TraceWriter(folder, manifest):
        pass  # complete with all prompts in it


def _with_absolute_paths(request: ProfileRequest) -> ProfileRequest:
    """The same request for workers, which may run in other folders."""

    def absolute(source: str | None) -> str | None:
        return str(Path(source).absolute()) if source and Path(source).exists() else source

    pair = request.pair
    return replace(
        request,
        pair=replace(
            pair,
            target=absolute(pair.target),
            drafter=absolute(pair.drafter),
            loading=replace(pair.loading, tokenizer=absolute(pair.loading.tokenizer)),
        ),
        prompts=replace(request.prompts, prompts=absolute(request.prompts.prompts)),
        outputs=request.outputs and request.outputs.absolute(),
    )


def _check_same(pair: Pair, manifest: Manifest) -> None:
    # A worker may find other models under the same names, another kind of device, or no library for the engine.
    fingerprints = pair.fingerprints()
    for role, entry in (("target", manifest.target), ("draft", manifest.draft)):
        if entry is not None and fingerprints[role] != entry.fingerprint:
            raise TraceError(f"the {role} at {entry.source} is another model for this worker than for the run")
    device = pair.target.spec.device
    compared = [
        ("device", device.type, torch.device(manifest.device).type),
        ("dtype", str(pair.target.spec.dtype).removeprefix("torch."), manifest.target.dtype),
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
