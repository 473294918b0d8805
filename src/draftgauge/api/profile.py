"""Record a pair: its dense trace on some prompts, and what a step costs on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.api.batches import check_batches
from draftgauge.api.pair import Pair, check_draft_is_used, drafter_of, labelled, load_pair, sampled, target_of
from draftgauge.api.profile_estimate import estimate_rows
from draftgauge.api.profile_parts import record_in_parts
from draftgauge.api.profile_plan import (
    EncodedPrompt,
    check_compressions,
    check_recording,
    choose_prompts,
    encode_prompts,
    make_manifests,
    run_folders,
)
from draftgauge.api.recording import has_costs, measure_pair, missing_prompts, record_missing, sampling_of
from draftgauge.api.requests import ProfileRequest
from draftgauge.api.served import said_left_out, usable_answers
from draftgauge.api.summary import profile_rows
from draftgauge.api.verb import verb
from draftgauge.core.executor import check_executor, shared_ray
from draftgauge.core.files import require_writable
from draftgauge.core.locks import only_writer
from draftgauge.core.progress import Progress, silent
from draftgauge.meter import measured_span
from draftgauge.models.device import release_unused
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.writer import SHARD_PROMPTS, TraceWriter


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


@verb(ProfileRequest)
def profile(
    request: ProfileRequest, *, progress: Progress = silent, on_warning: Callable[[str], None] = _warn
) -> list[dict[str, Any]]:
    """Record traces and cost curves of a pair, one run for each compression of the target.

    Everything is checked before anything is recorded. A run that was interrupted, or killed, goes on where it stopped
    when the same is asked for again; recorded prompts are not recorded twice. With several compressions, ``out`` holds
    a folder for each.

    At a temperature above 0 output and drafts are drawn, and chances of acceptance are recorded in place of outcomes
    (:mod:`draftgauge.traces.sampled`).

    Args:
        request: what to record.
        progress: told (what, done, total).
        on_warning: told of answers of a serving engine that are left out; by default a Python warning.

    Returns:
        Rows as :func:`draftgauge.api.summary.profile_rows` describes; ``run`` names the folder of each run.

    Raises:
        DraftgaugeError: for arguments, prompts, models or folders that cannot be used, before any work is done.
    """
    request = replace(request, pair=labelled(request.pair), sampling=sampled(request.sampling, target_of(request.pair)))
    names = request.pair.compression
    kind, _ = drafter_of(request.pair)
    check_draft_is_used(request.pair)
    check_recording(names, kind, sampling_of(request))
    check_executor(request.where.executor)
    if request.plan:
        return estimate_rows(request)
    folders = run_folders(request.out, names)
    path, chosen = choose_prompts(request.prompts)
    pair = load_pair(request.pair.at(names[0]))
    check_compressions(pair, names, request.pair.loading.trust_remote_code)
    encoded = encode_prompts(pair, chosen, path, request.output.max_new_tokens, request.prompts)
    if request.outputs is not None:
        limit = request.output.max_new_tokens
        usable = usable_answers(request.outputs, encoded, pair.tokenizer, pair.end_tokens, limit)
        encoded = usable.prompts
        if usable.left_out:
            said = said_left_out(usable.left_out, len(usable.left_out) + len(encoded))
            on_warning(f"{request.outputs}: {said}. They are left out, with their prompts")
    measured_span(request.drafts.gamma_max, pair.context)
    check_batches(pair, request.batches, max(len(tokens) for _, tokens in encoded) + request.output.max_new_tokens)
    manifests = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)
    loaded = [pair]
    del pair  # so that its memory can be freed
    with ExitStack() as alone:
        for folder in dict.fromkeys((request.out, *folders.values())):  # a run may be gone on with by itself
            require_writable(folder)
            alone.enter_context(only_writer(folder))
        try:
            if request.where.in_parts:
                loaded.clear()  # the workers load their own
                release_unused()
                with shared_ray():
                    for name in names:
                        single = replace(request, pair=request.pair.at(name))
                        record_in_parts(single, folders[name], manifests[name], encoded, progress)
            else:
                _record_here(loaded, folders, manifests, encoded, request, progress)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"What was recorded is kept in {request.out}: ask for the same again to go on from there."
            )
            raise
    return profile_rows(list(folders.values()))


def _record_here(
    loaded: list[Pair],
    folders: Mapping[str, Path],
    manifests: Mapping[str, Manifest],
    encoded: Sequence[EncodedPrompt],
    request: ProfileRequest,
    progress: Progress,
) -> None:
    """Every compression in turn, in this process; a run is complete only with its costs.

    ``loaded`` is emptied: it holds a pair at the first compression.
    """
    pair = loaded.pop()
    writers = {name: TraceWriter(folders[name], manifests[name], SHARD_PROMPTS) for name in folders}
    for name, writer in writers.items():
        finished = writer.manifest.complete and not missing_prompts(writer, encoded) and has_costs(writer, request)
        if finished and not request.costs.measure:
            continue
        if pair.compression != name:
            del pair  # two targets may not fit
            pair = load_pair(request.pair.at(name))
        with writer:
            recorded = record_missing(pair, writer, encoded, request, progress)
            if recorded or request.costs.measure or not has_costs(writer, request):
                measure_pair(pair, encoded, request, progress, writer.folder)
