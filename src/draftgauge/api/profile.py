"""Record a pair: its dense trace on some prompts, and what a step costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Generator

from draftgauge.api.pair import Pair, drafter_of, labelled, load_pair, sampled, target_of
from draftgauge.api.profile_plan import (
    EncodedPrompt,
    check_recording,
    check_widths,
    choose_prompts,
    encode_prompts,
    make_manifests,
    run_folders,
)
from draftgauge.api.requests import ProfileRequest
from draftgauge.api.summary import profile_rows
from draftgauge.api.verb import verb
from draftgauge.core.errors import TraceError
from draftgauge.core.progress import Progress, silent
from draftgauge.core.prompts import in_turn
from draftgauge.core.seeds import derive_seed, generator
from draftgauge.decoding.meter import MeterPlan, default_contexts, measure_costs, measured_span
from draftgauge.decoding.recorder import RecordingPlan, record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.writer import TraceWriter
from draftgauge.verification import Sampling

SHARD_PROMPTS = 4  # a kill loses what was recorded of one shard


@verb(ProfileRequest)
def profile(request: ProfileRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Record traces and cost curves of a pair, one run for each compression of the target.

    Everything is checked before anything is recorded. A run that was interrupted, or killed, goes on where it stopped
    when the same is asked for again; recorded prompts are not recorded twice. With several compressions, ``out`` holds
    a folder for each.

    At a temperature above 0 output and drafts are drawn, and chances of acceptance are recorded in place of outcomes
    (:mod:`draftgauge.traces.sampled`).

    Args:
        request: what to record.
        progress: told (what, done, total).

    Returns:
        Rows as :func:`draftgauge.api.summary.profile_rows` describes; ``run`` names the folder of each run.

    Raises:
        DraftgaugeError: for arguments, prompts, models or folders that cannot be used, before any work is done.
    """
    request = replace(request, pair=labelled(request.pair), sampling=sampled(request.sampling, target_of(request.pair)))
    names = request.pair.compression
    kind, _ = drafter_of(request.pair)
    check_recording(names, kind, _sampling(request))
    folders = run_folders(request.out, names)
    path, chosen = choose_prompts(request.prompts)
    pair = load_pair(request.pair.at(names[0]))
    check_widths(pair, names, request.pair.loading.trust_remote_code)
    encoded = encode_prompts(pair, chosen, path, request.output.max_new_tokens, request.prompts)
    measured_span(request.drafts.gamma_max, pair.context)
    manifests = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)
    writers = {name: TraceWriter(folders[name], manifests[name], SHARD_PROMPTS) for name in names}
    try:
        for name, writer in writers.items():
            if _finished(writer, encoded) and not request.costs.measure:
                continue
            if pair.compression != name:
                del pair  # two targets may not fit
                pair = load_pair(request.pair.at(name))
            _record_run(pair, writer, encoded, request, progress)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"What was recorded is kept in {request.out}: ask for the same again to go on from there.")
        raise
    return profile_rows(list(folders.values()))


def _sampling(request: ProfileRequest) -> Sampling:
    asked = request.sampling
    return Sampling(asked.temperature, asked.top_k, asked.top_p)


def _finished(writer: TraceWriter, encoded: Sequence[EncodedPrompt]) -> bool:
    return writer.manifest.complete and not _missing(writer, encoded) and _has_costs(writer.folder, writer.manifest)


def _missing(writer: TraceWriter, encoded: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    done = writer.done
    return [(prompt, tokens) for prompt, tokens in encoded if prompt.index not in done]


def _has_costs(folder: Path, manifest: Manifest) -> bool:
    try:
        return CostCurve.load(folder / COSTS_NAME).gamma_max == manifest.gamma_max
    except TraceError:  # not measured yet, or damaged
        return False


def _record_run(
    pair: Pair, writer: TraceWriter, encoded: Sequence[EncodedPrompt], request: ProfileRequest, progress: Progress
) -> None:
    """Record the prompts that are missing, then measure; the run is complete only with both."""
    settings = DecodingSettings(request.output.max_new_tokens, _sampling(request), pair.end_tokens)
    plan = RecordingPlan(settings, request.drafts.gamma_max)
    missing = _missing(writer, encoded)
    until = None if request.seconds is None else time.monotonic() + request.seconds
    with writer:
        done, label = len(encoded) - len(missing), f"record {pair.compression}"
        progress(label, done, len(encoded))
        for prompt, tokens in missing if until is None else _by_turns(missing):
            if until is not None and done and time.monotonic() > until:
                writer.settle()
                break
            drawing = _generator(
                pair, request, "record", prompt.index
            )  # of its own, so that a run may stop and go on anywhere
            drafter = pair.drafter(_sampling(request), drawing)
            record = record_prompt(pair.target, drafter, prompt, tokens, plan, pair.tokenizer, drawing)
            writer.add(record)
            done += 1
            progress(label, done, len(encoded))
        if missing or request.costs.measure or not _has_costs(writer.folder, writer.manifest):
            _measure(pair, encoded, request, progress).save(writer.folder / COSTS_NAME)


def _by_turns(encoded: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    """The first prompt of each task, then the second ones, and so on."""
    by_index = {prompt.index: (prompt, tokens) for prompt, tokens in encoded}
    return [by_index[prompt.index] for prompt in in_turn(prompt for prompt, _ in encoded)]


def _measure(pair: Pair, encoded: Sequence[EncodedPrompt], request: ProfileRequest, progress: Progress) -> CostCurve:
    """The cost curve at the context lengths of these prompts."""
    lengths = [len(tokens) for _, tokens in encoded]
    label = f"cost curve {pair.compression}"
    drawing = _generator(pair, request, "costs")
    plan = MeterPlan(
        text=[token for _, tokens in encoded for token in tokens],
        contexts=default_contexts(lengths, [request.output.max_new_tokens] * len(lengths)),
        gamma_max=request.drafts.gamma_max,
        seconds=request.costs.cost_seconds,
        context_limit=pair.context,
        compression=pair.compression,
        vocabulary=vocabulary_digest(pair.tokenizer),
        sampling=_sampling(request),
    )
    return measure_costs(
        pair.target,
        pair.drafter(_sampling(request), drawing, end_tokens=frozenset()),  # one that no end token stops
        plan,
        generator(request.randomness.seed, "costs", pair.compression),
        drawing,
        lambda done, total: progress(label, done, total),
    )


def _generator(pair: Pair, request: ProfileRequest, *labels: str | int) -> Generator | None:
    """What is drawn for one purpose; None for greedy decoding, which draws nothing."""
    if request.sampling.temperature == 0:
        return None
    return Generator(pair.target.spec.device).manual_seed(derive_seed(request.randomness.seed, *labels))
