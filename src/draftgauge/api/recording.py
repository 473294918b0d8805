"""Recording the prompts of one run, and measuring its costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Generator

from draftgauge.api.batches import measure_pair_batches
from draftgauge.api.pair import Pair
from draftgauge.api.profile_plan import choose_prompts, encode_prompts, make_manifests
from draftgauge.api.requests import ProfileRequest
from draftgauge.api.runs import EncodedPrompt
from draftgauge.api.served import note_differences, usable_answers
from draftgauge.core.errors import TraceError
from draftgauge.core.progress import Progress
from draftgauge.core.prompts import in_turn
from draftgauge.core.seeds import derive_seed, generator
from draftgauge.decoding.batch_meter import BatchMeterPlan
from draftgauge.decoding.recorder import RecordingPlan, record_answer, record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.meter import MeterPlan, default_contexts, measure_costs
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import pair_fingerprint, run_costs
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.reader import read_trace
from draftgauge.traces.record import PromptRecord
from draftgauge.traces.trace import Trace
from draftgauge.traces.writer import SHARD_PROMPTS, TraceWriter
from draftgauge.verification import Sampling


def sampling_of(request: ProfileRequest) -> Sampling:
    """How its tokens are chosen."""
    asked = request.sampling
    return Sampling(asked.temperature, asked.top_k, asked.top_p)


def missing_prompts(writer: TraceWriter, encoded: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    """The prompts that are not yet recorded."""
    done = writer.done
    return [(prompt, tokens) for prompt, tokens in encoded if prompt.index not in done]


def has_costs(writer: TraceWriter, request: ProfileRequest) -> bool:
    """Whether what the request asks for has been measured."""
    try:
        costs = run_costs(writer.folder)
    except TraceError:  # not measured yet, damaged, or of another pair
        return False
    measured = () if costs.batched is None else costs.batched.batches
    return costs.gamma_max == writer.manifest.gamma_max and set(request.batches) <= set(measured)


def record_missing(
    pair: Pair, writer: TraceWriter, encoded: Sequence[EncodedPrompt], request: ProfileRequest, progress: Progress
) -> bool:
    """Record the prompts that are missing, inside the writer's context; whether there were any."""
    missing = missing_prompts(writer, encoded)
    record = _Recorder(pair, writer, encoded, request)
    until = None if request.seconds is None else time.monotonic() + request.seconds
    done, label = len(encoded) - len(missing), f"record {pair.compression}"
    progress(label, done, len(encoded))
    for prompt in missing if until is None else _by_turns(missing):
        if until is not None and done and time.monotonic() > until:
            writer.settle()
            break
        writer.add(record(prompt))
        done += 1
        progress(label, done, len(encoded))
    return bool(missing)


def record_trace(pair: Pair, request: ProfileRequest, progress: Progress) -> Trace:
    """The trace of a pair on the prompts of a request, recorded into its folder without measuring costs."""
    path, chosen = choose_prompts(request.prompts)
    encoded = encode_prompts(pair, chosen, path, request.output.max_new_tokens, request.prompts)
    manifest = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)[pair.compression]
    with TraceWriter(request.out, manifest, SHARD_PROMPTS) as writer:
        record_missing(pair, writer, encoded, request, progress)
    return read_trace(request.out)


def measure_pair(
    pair: Pair, encoded: Sequence[EncodedPrompt], request: ProfileRequest, progress: Progress, run: Path
) -> None:
    """Measure the cost curve at the context lengths of these prompts and save it into a run.

    That of single requests is saved before batches are measured, and so is kept if they fail.
    """
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
        sampling=sampling_of(request),
    )
    curve = measure_costs(
        pair.target,
        pair.drafter(plan.sampling, drawing, end_tokens=frozenset()),  # one that no end token stops
        plan,
        generator(request.randomness.seed, "costs", pair.compression),
        drawing,
        lambda done, total: progress(label, done, total),
    )
    manifest = Manifest.load(run)
    curve = replace(curve, pair=pair_fingerprint(manifest), engine=manifest.target.engine)
    curve.save(run / COSTS_NAME)
    if not request.batches:
        return
    of_batches = BatchMeterPlan(
        plan.text, request.batches, plan.contexts, plan.gamma_max, plan.seconds / len(request.batches)
    )
    replace(curve, batched=measure_pair_batches(pair, of_batches, request.randomness.seed, progress)).save(
        run / COSTS_NAME
    )


class _Recorder:
    """Records one prompt after the other: what the target decodes, or what a serving engine answered."""

    def __init__(
        self, pair: Pair, writer: TraceWriter, encoded: Sequence[EncodedPrompt], request: ProfileRequest
    ) -> None:
        settings = DecodingSettings(request.output.max_new_tokens, sampling_of(request), pair.end_tokens)
        self._plan = RecordingPlan(settings, request.drafts.gamma_max)
        self._pair, self._request, self._folder = pair, request, writer.folder
        self._answers = None
        if request.outputs is not None:
            limit = request.output.max_new_tokens
            usable = usable_answers(request.outputs, encoded, pair.tokenizer, pair.end_tokens, limit)
            self._answers = usable.answers

    def __call__(self, encoded: EncodedPrompt) -> PromptRecord:
        prompt, tokens = encoded
        pair, plan = self._pair, self._plan
        drawing = _generator(pair, self._request, "record", prompt.index)  # of its own: a run may go on anywhere
        drafter = pair.drafter(plan.settings.sampling, drawing)
        if self._answers is None:
            return record_prompt(pair.target, drafter, prompt, tokens, plan, pair.tokenizer, drawing)
        answer = self._answers[prompt.index]
        record, differs = record_answer(pair.target, drafter, encoded, answer, plan, pair.tokenizer)
        note_differences(self._folder, prompt.index, differs, len(answer.tokens))
        return record


def _by_turns(encoded: Sequence[EncodedPrompt]) -> list[EncodedPrompt]:
    """The first prompt of each task, then the second ones, and so on."""
    by_index = {prompt.index: (prompt, tokens) for prompt, tokens in encoded}
    return [by_index[prompt.index] for prompt in in_turn(prompt for prompt, _ in encoded)]


def _generator(pair: Pair, request: ProfileRequest, *labels: str | int) -> Generator | None:
    """What is drawn for one purpose; None for greedy decoding, which draws nothing."""
    if request.sampling.temperature == 0:
        return None
    return Generator(pair.target.spec.device).manual_seed(derive_seed(request.randomness.seed, *labels))
