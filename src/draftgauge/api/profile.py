"""Record a pair: its dense trace on some prompts, and what a step costs on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftgauge.core.errors import DraftgaugeError, TraceError, warn
from draftgauge.core.executor import check_executor
from draftgauge.core.files import only_writer, require_place, require_writable
from draftgauge.core.parts import WEIGHT_ONLY
from draftgauge.core.progress import Progress, silent
from draftgauge.core.verb import verb
from draftgauge.decoding.recorder import Answer
from draftgauge.drafters.base import choose_drafter, drafter_kind, drafter_kinds
from draftgauge.drafters.dense import DraftsRefused
from draftgauge.judging.evaluate import task_masks
from draftgauge.judging.hindsight import hindsight_optimum
from draftgauge.judging.replay import replay_fixed_all
from draftgauge.meter import measured_span
from draftgauge.models.base import skeleton_of
from draftgauge.models.device import QUANTISED, check_quantises, quantization_config, release_unused
from draftgauge.models.spec import read_configuration
from draftgauge.models.tokenizer import answers_warning
from draftgauge.pair.estimate import estimate_rows
from draftgauge.pair.loading import Pair, labelled, load_pair, refuse_beside_pair, sampling_of, target_of
from draftgauge.pair.prompts import choose_prompts, encode_prompts, log
from draftgauge.pair.quality import measure_quality, read_quality
from draftgauge.pair.recording import (
    LLAMA_CPP,
    check_batches,
    has_costs,
    make_manifests,
    measure_pair,
    missing_prompts,
    record_in_parts,
    record_missing,
)
from draftgauge.pair.served import read_differences, read_outputs, said_left_out, usable_answers
from draftgauge.requests import ProfileRequest, SamplingSpec
from draftgauge.traces.run import MANIFEST_NAME, Manifest, Run
from draftgauge.traces.trace import Trace, select
from draftgauge.traces.writer import TraceWriter

AskedPrompt = tuple[int, tuple[int, ...]]
"""A prompt's index and its token ids, as the models take them."""


@verb(ProfileRequest, loaded=Pair)
def profile(request: ProfileRequest, *, pair: Pair | None = None, progress: Progress = silent) -> list[dict[str, Any]]:
    """Record traces and cost curves of a pair, one run for each compression of the target.

    Everything is checked before anything is recorded. An interrupted or killed run goes on where it stopped when the
    same is asked for again. With several compressions, ``out`` holds a folder for each. At a temperature above 0 output
    and drafts are drawn, and chances of acceptance are recorded (:mod:`draftgauge.traces.sampled`).

    Args:
        request: what to record, and of which pair.
        pair: loaded already: ``profile(pair, "runs/x")``; the request's is loaded if None.

    Returns:
        Rows as :func:`profile_rows` describes; ``run`` names the folder of each run. Of a plan, as
        :func:`~draftgauge.pair.estimate.estimate_rows`.

    Raises:
        DraftgaugeError: for arguments, prompts, models or folders that cannot be used, before any work is done.
    """
    if pair is not None:
        refuse_beside_pair(request)
        request = replace(request, pair=pair.spec)
    asked = sampling_of(request.sampling, target_of(request.pair))
    sampling = SamplingSpec(temperature=asked.temperature, top_k=asked.top_k, top_p=asked.top_p)
    request = replace(request, pair=labelled(request.pair), sampling=sampling)
    _check_recordable(request)
    if request.plan:
        return estimate_rows(request)
    runs = record_runs(request, progress, pair=pair)
    measure_quality(request, runs, progress)
    return profile_rows(runs)


def record_runs(
    request: ProfileRequest,
    progress: Progress,
    known: Mapping[AskedPrompt, Answer] | None = None,
    pair: Pair | None = None,
) -> list[Path]:
    """Record a checked request; returns its run folders.

    ``known`` are the target's outputs, which are then not decoded.
    """
    names, limit = request.pair.compression, request.output.max_new_tokens
    folders = run_folders(request.out, names)
    path, chosen = choose_prompts(request.prompts)
    require_place(request.out)
    pair = pair or load_pair(request.pair.at(names[0]))
    _check_later_compressions(pair, request)
    if (longest := pair.longest(asked := request.drafts.gamma_max)) < asked:
        warn(f"{pair.draft_source.name} drafts at most {longest} a step: --gamma-max is {longest} here, not {asked}")
        request = replace(request, drafts=replace(request.drafts, gamma_max=longest))
    if request.prompts.chat is None:  # the manifest says what was done
        request = replace(request, prompts=replace(request.prompts, chat=pair.tokenizer.chat_template is not None))
    encoded = encode_prompts(pair.encoder, chosen, path, limit, request.prompts)
    answers = None
    if known is not None:
        if lacking := [p.identifier for p, tokens in encoded if (p.index, tuple(tokens)) not in known]:
            raise TraceError(
                f"no output is known for the prompts {', '.join(lacking[:3])}, or they were cut elsewhere, as these "
                f"models take {pair.context} tokens: record into another folder, or give shorter prompts"
            )
        answers = {p.index: known[p.index, tuple(tokens)] for p, tokens in encoded}
    if request.outputs is not None:
        usable = usable_answers(request.outputs, encoded, pair.tokenizer, pair.end_tokens, limit)
        encoded, answers = usable.prompts, usable.answers
        if usable.left_out:
            said = said_left_out(usable.left_out, len(usable.left_out) + len(encoded))
            warn(f"{request.outputs}: {said}. They are left out, with their prompts")
    measured_span(request.drafts.gamma_max, pair.context)
    check_batches(pair, request.batches, max(len(tokens) for _, tokens in encoded) + limit)
    manifests = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)
    end_tokens = pair.end_tokens
    with ExitStack() as alone:
        for folder in dict.fromkeys((request.out, *folders.values())):  # each run may also be resumed by itself
            require_writable(folder)
            alone.enter_context(only_writer(folder))
        try:
            if request.where.in_parts:
                del pair  # the workers load their own
                release_unused()
                for name, folder in folders.items():
                    single = replace(request, pair=request.pair.at(name))
                    record_in_parts(single, folder, manifests[name], encoded, progress)
            else:
                writers = {name: TraceWriter(folders[name], manifests[name]) for name in names}
                for name, writer in writers.items():
                    if more := len(set(writer.done) - {prompt.index for prompt, _ in encoded}):
                        warn(f"{writer.folder} holds more prompts than are asked for now ({more}), which count too")
                    finished = writer.manifest.complete and not missing_prompts(writer, encoded)
                    if finished and has_costs(writer, request) and not request.costs.measure:
                        _warn_of_other_costs(writer.folder, manifests[name])
                        continue
                    if pair.compression != name:
                        del pair  # two targets may not fit
                        pair = load_pair(request.pair.at(name))
                        if request.prompts.turns > 1 and answers is None:  # behind its own answers
                            encoded = encode_prompts(pair.encoder, chosen, path, limit, request.prompts)
                    with writer:  # a run is complete only with its costs
                        recorded = record_missing(pair, writer, encoded, request, progress, answers)
                        writer.settle()  # of longer answers fewer conversations may fit
                        if recorded or request.costs.measure or not has_costs(writer, request):
                            measure_pair(pair, encoded, request, progress, writer.folder)
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(
                f"What was recorded is kept in {request.out}: ask for the same again to go on from there."
            )
            raise
    for name, folder in folders.items() if known is None else ():
        _say_how_answers_look(name, Run(folder).trace, end_tokens)
    return list(folders.values())


def _check_recordable(request: ProfileRequest) -> None:
    for compression in request.pair.compression:
        quantization_config(compression, torch.float32)
    kind, _ = choose_drafter(request.pair.drafter)
    if request.sampling.temperature > 0 and not issubclass(drafter_kind(kind).drafter_type, DraftsRefused):
        able = [each.name for each in drafter_kinds().values() if issubclass(each.drafter_type, DraftsRefused)]
        raise DraftgaugeError(
            f"at a temperature above 0 a trace is recorded with the drafter {' or '.join(able)}, not {kind}: "
            "only there the draft from one position tells of the next ones"
        )
    check_executor(request.where.executor)
    if request.outputs is not None:
        read_outputs(request.outputs)  # a file that cannot be used is refused before a model is loaded


def _check_later_compressions(pair: Pair, request: ProfileRequest) -> None:
    """Fail early if nothing can quantise the target at a compression that is recorded later."""
    trusted = request.pair.loading.trust_remote_code
    later = [
        name for name in request.pair.compression if name in (*QUANTISED, *WEIGHT_ONLY) and name != pair.compression
    ]
    if later and skeleton_of(pair.target) is not None:  # a GGUF file has none
        config = read_configuration(pair.target_name, trusted)
        for name in later:
            check_quantises(config, name, pair.target.spec.device, trusted)


def run_folders(out: Path, compressions: Sequence[str]) -> dict[str, Path]:
    """The run folder of each compression: ``out`` itself for a single one, else a folder in it for each."""
    single = (out / MANIFEST_NAME).exists()
    several = sorted(child.parent.name for child in out.glob(f"*/{MANIFEST_NAME}"))
    if len(compressions) > 1 and single:
        raise TraceError(
            f"{out} holds the trace of one compression, which {len(compressions)} cannot join: choose another folder"
        )
    if len(compressions) == 1 and several:
        raise TraceError(
            f"{out} holds a folder for each of {', '.join(several)}: name {out / compressions[0]}, or another folder"
        )
    return {name: out / name for name in compressions} if len(compressions) > 1 else {compressions[0]: out}


def _say_how_answers_look(compression: str, trace: Trace, end_tokens: frozenset[int]) -> None:
    answers = [output.tolist() for output in trace.outputs]
    if said := answers_warning(answers, end_tokens):
        warn(f"target {compression}: {said}")
    if cut := sum(prompt.finish == "length" for prompt in trace.prompts):
        log.info("target %s: %d of %d answers are cut at --max-new-tokens", compression, cut, len(answers))


def _warn_of_other_costs(run: Path, asked: Manifest) -> None:
    """Warn where a finished run keeps costs of another engine or device than what is asked for now."""
    costs = Run(run).costs
    kept, now = f"{costs.engine} on {costs.device}", f"{asked.target.engine} on {asked.device}"
    if kept != now:
        warn(f"the costs in {run} stay those of {kept}: pass --measure for those of {now}")


def profile_rows(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """One row for every run and task (and ``all``): how much was recorded, how much is accepted, which length is best.

    ``hindsight_gain`` is the modelled speed of the hindsight optimum over that of the best fixed length (0 included),
    minus 1. ``differing`` is the share of positions of a serving engine's answers whose token is not the target's
    choice. ``kl`` and ``agreement`` compare a compressed target with the uncompressed one
    (:func:`~draftgauge.pair.quality.measure_quality`). ``cost_doubt`` says why the costs are not to be trusted. For a
    mixture of experts, ``experts_1``, ``experts_2``, ... say how many experts a layer reads to verify so many tokens,
    ``verify_1_ms``, ... how long that takes. For a GGUF file ``kernels`` names the
    instruction sets that llama.cpp used.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        recorded = Run(run)
        manifest, (trace, costs) = recorded.manifest, recorded.read()
        verify = costs.verify[len(costs.contexts) // 2]
        noted, quality = None if manifest.outputs is None else read_differences(run), read_quality(run)
        for task, mask in task_masks(trace):
            part = select(trace, mask)
            fixed = [outcome.tokens_per_second for outcome in replay_fixed_all(part, costs)]
            drafted, differ = part.drafted > 0, [len((noted or {}).get(prompt.index, ())) for prompt in part.prompts]
            rows.append(
                {
                    "compression": trace.compression,
                    "task": task,
                    "prompts": len(part.prompts),
                    "tokens": part.positions,
                    "gamma_max": trace.gamma_max,
                    "mean_accepted": float(part.accepted.mean()),
                    "first_accepted": float(np.mean(part.accepted[drafted] > 0)) if drafted.any() else None,
                    "best_fixed_gamma": int(np.argmax(fixed)),
                    "hindsight_gain": hindsight_optimum(part, costs).tokens_per_second / max(fixed) - 1,
                    "cost_ratio": costs.cost_ratio(),
                    "cost_doubt": costs.doubt() or None,
                    "verify_one_ms": 1e3 * verify[0],
                    "kl": quality.get("kl"),
                    "agreement": quality.get("agreement"),
                    "differing": None if noted is None else sum(differ) / part.positions,
                    "device": manifest.device,
                    "run": str(run),
                    **({"kernels": manifest.environment[LLAMA_CPP]} if LLAMA_CPP in manifest.environment else {}),
                    **{f"experts_{count}": read for count, read in enumerate(costs.experts, 1)},
                    **{f"verify_{count}_ms": 1e3 * verify[count - 1] for count, _ in enumerate(costs.experts, 1)},
                }
            )
    return rows
