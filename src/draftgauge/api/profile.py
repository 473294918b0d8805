"""Record a pair: its dense trace on some prompts, and what a step costs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Generator

from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.profile_plan import (
    EncodedPrompt,
    Request,
    check_widths,
    choose_prompts,
    encode_prompts,
    make_manifests,
    run_folders,
)
from draftgauge.core.errors import TraceError
from draftgauge.core.seeds import derive_seed, generator
from draftgauge.decoding.meter import default_contexts, measure_costs, measured_span
from draftgauge.decoding.recorder import record_prompt
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.source import choose_drafter
from draftgauge.models.vocabulary import vocabulary_digest
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.writer import TraceWriter
from draftgauge.verification import Sampling

SHARD_PROMPTS = 4  # a kill loses what was recorded of one shard

Progress = Callable[[str, int, int], None]


def profile(
    *,
    target: str | Path = "reference",
    draft: str | Path | None = "reference",
    prompts: str | Path | None = None,
    out: str | Path,
    compression: str | Sequence[str] = ("none",),
    gamma_max: int = 16,
    max_new_tokens: int = 128,
    limit: int | None = None,
    per_task: int | None = None,
    tasks: Sequence[str] | None = None,
    split: str | None = None,
    drafter: str | Path = "language_model",
    long_prompts: str = "error",
    device: str | None = None,
    engine: str = "auto",
    seed: int = 0,
    repeats: int = 10,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    trust_remote_code: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> list[Path]:
    """Record traces and cost curves of a pair, one run for each compression of the target.

    Everything is checked before anything is recorded. A run that was interrupted, or killed, goes on where it stopped when the
    same is asked for again; recorded prompts are not recorded twice.

    Args:
        target: a folder, a model id of the hub, or ``reference``, the bundled pair.
        draft: likewise; not looked at with prompt lookup.
        prompts: a prompt file (see :func:`~draftgauge.core.prompts.read_prompts`), ``reference:SPLIT``, or the bundled test prompts.
        out: folder of the run; with several compressions, of a folder for each.
        compression: of the target, one name or several: none, fp16, bf16, int8, nf4.
        gamma_max: longest draft.
        max_new_tokens: limit of the output of each prompt, in tokens.
        limit, per_task, tasks, split: which prompts of the file.
        drafter: ``language_model``, ``prompt_lookup``, or the folder of a trained drafter.
        long_prompts: what to do with prompts that do not fit the models: ``error``, ``truncate`` (keep the end) or ``skip``.
        device: a GPU where there is one, else the CPU.
        engine: ``auto``, ``lean`` or ``modules``.
        seed: for the order of the cost measurements, and of what is drawn at a temperature above 0.
        repeats: measurements of the cost of every draft length.
        temperature, top_k, top_p: at a temperature above 0 output and drafts are drawn from these distributions, and chances of
            acceptance are recorded in place of outcomes (:mod:`draftgauge.traces.sampled`).
        trust_remote_code: run Python code that comes with the models.
        progress: told (what, done, total).

    Returns:
        The run folders, in the order of the compressions.

    Raises:
        DraftgaugeError: for arguments, prompts, models or folders that cannot be used, before any work is done.
    """
    names = (compression,) if isinstance(compression, str) else tuple(compression)
    sampling = Sampling(temperature, top_k, top_p)
    kind, source = choose_drafter(drafter, draft)
    request = Request(names, kind, gamma_max, max_new_tokens, limit, per_task, long_prompts, repeats, seed, sampling)
    folders = run_folders(Path(out), names)
    path, chosen = choose_prompts(prompts, request, tasks, split)

    def load(name: str) -> Pair:
        return load_pair(target, source, name, kind, device, engine, trust_remote_code)

    pair = load(names[0])
    check_widths(pair, names, trust_remote_code)
    encoded = encode_prompts(pair, chosen, path, request)
    measured_span(gamma_max, pair.context)
    manifests = make_manifests(pair, [prompt for prompt, _ in encoded], path, request)
    writers = {name: TraceWriter(folders[name], manifests[name], SHARD_PROMPTS) for name in names}
    try:
        for name, writer in writers.items():
            if _finished(writer, encoded):
                continue
            if pair.compression != name:
                del pair  # two targets may not fit
                pair = load(name)
            _record_run(pair, writer, encoded, request, progress)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(f"What was recorded is kept in {out}: ask for the same again to go on from there.")
        raise
    return list(folders.values())


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
    pair: Pair, writer: TraceWriter, encoded: Sequence[EncodedPrompt], request: Request, progress: Progress
) -> None:
    """Record the prompts that are missing, then measure; the run is complete only with both."""
    settings = DecodingSettings(request.max_new_tokens, request.sampling, pair.end_tokens)
    missing = _missing(writer, encoded)
    with writer:
        done, label = len(encoded) - len(missing), f"record {pair.compression}"
        progress(label, done, len(encoded))
        for prompt, tokens in missing:
            drawing = _generator(
                pair, request, "record", prompt.index
            )  # of its own, so that a run may stop and go on anywhere
            drafter = pair.drafter(request.sampling, drawing)
            record = record_prompt(
                pair.target, drafter, prompt, tokens, settings, pair.tokenizer, request.gamma_max, generator=drawing
            )
            writer.add(record)
            done += 1
            progress(label, done, len(encoded))
        if missing or not _has_costs(writer.folder, writer.manifest):
            _measure(pair, encoded, request, progress).save(writer.folder / COSTS_NAME)


def _measure(pair: Pair, encoded: Sequence[EncodedPrompt], request: Request, progress: Progress) -> CostCurve:
    """The cost curve at the context lengths of these prompts."""
    lengths = [len(tokens) for _, tokens in encoded]
    label = f"cost curve {pair.compression}"
    drawing = _generator(pair, request, "costs")
    return measure_costs(
        pair.target,
        pair.drafter(request.sampling, drawing, end_tokens=frozenset()),  # one that no end token stops
        text=[token for _, tokens in encoded for token in tokens],
        contexts=default_contexts(lengths, [request.max_new_tokens] * len(lengths)),
        rng=generator(request.seed, "costs", pair.compression),
        gamma_max=request.gamma_max,
        repeats=request.repeats,
        compression=pair.compression,
        vocabulary=vocabulary_digest(pair.tokenizer),
        context_limit=pair.context,
        sampling=request.sampling,
        generator=drawing,
        progress=lambda done, total: progress(label, done, total),
    )


def _generator(pair: Pair, request: Request, *labels: str | int) -> Generator | None:
    """What is drawn for one purpose; None for greedy decoding, which draws nothing."""
    if request.sampling.greedy:
        return None
    return Generator(pair.target.spec.device).manual_seed(derive_seed(request.seed, *labels))
