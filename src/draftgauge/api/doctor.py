"""Why a drafter is slow or hardly accepted: the evidence on a pair, a recorded run or an engine's counters."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftgauge.api.doctor_checks import CHECKPOINT, UNKNOWN, Evidence, examine
from draftgauge.api.pair import drafter_of, load_pair_of, target_of
from draftgauge.api.profile import profile
from draftgauge.api.requests import DeviceSpec, DoctorRequest, LoadSpec, PairSpec, ProfileRequest
from draftgauge.api.runs import only_run
from draftgauge.api.verb import verb
from draftgauge.core.compressions import UNCOMPRESSED
from draftgauge.core.errors import DraftgaugeError, ModelError, warn
from draftgauge.core.progress import Progress, silent
from draftgauge.core.settings import given_settings, settings_of
from draftgauge.drafters.formats.building import read_layout, target_ids
from draftgauge.drafters.formats.files import read_config, read_tensors
from draftgauge.drafters.formats.live import CheckpointDrafter, CheckpointSource
from draftgauge.drafters.language_model import LanguageModelSource
from draftgauge.drafters.reuse.persistence import is_drafter, read_description, trained_compression
from draftgauge.drafters.source import drafter_kind
from draftgauge.models.compression import method_of
from draftgauge.models.device import upload
from draftgauge.models.engines.gguf_library import is_gguf
from draftgauge.models.fingerprint import files_of
from draftgauge.models.loading import load_tokenizer, quantisation_method
from draftgauge.models.tap_plan import TapPlan
from draftgauge.models.taps import attach_taps
from draftgauge.serving.counters import read_counts
from draftgauge.traces.costs import run_costs
from draftgauge.traces.engine_costs import read_costs
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.reader import read_trace
from draftgauge.traces.trace import Trace
from draftgauge.training.reuse.prepare import known_fingerprint

COMPARED = 4  # prompts on which other layers are tried


@verb(DoctorRequest)
def doctor(request: DoctorRequest, *, progress: Progress = silent) -> list[dict[str, Any]]:
    """Look for the usual reasons why a drafter is hardly accepted or speculation is no faster.

    Of a pair, its files are compared first; if nothing is wrong with them, it is recorded on the prompts, and the
    run is looked at. Of a recorded run, its files where they are still there. Of an engine, only its counters.

    Returns:
        Rows as of :func:`draftgauge.api.doctor_checks.examine`: ``check``, ``status`` ("wrong", "suspect", "well",
        "unknown"), ``what``, ``evidence`` and ``remedy``.

    Raises:
        DraftgaugeError: for models, prompts, a run or a server that cannot be used.
    """
    if request.url is not None:
        _refuse_others(request, request.url, "url", "server")
        return examine(Evidence(counts=read_counts(request.server or "vllm", request.url)))
    if request.folder is not None:
        loading = [entry.name for part in (DeviceSpec, LoadSpec) for entry in settings_of(part)]
        _refuse_others(request, str(request.folder), "folder", "costs_file", "server", *loading)
        return examine(_of_run(request, only_run(request.folder)[0], None))
    evidence = _of_files(request.pair, target_of(request.pair), *drafter_of(request.pair))
    rows = examine(evidence)
    if any(row["status"] == "wrong" for row in rows):
        return rows
    with tempfile.TemporaryDirectory(prefix="draftgauge-doctor-") as scratch:
        run = request.out or Path(scratch)
        parts = ("pair", "prompts", "output", "drafts", "sampling", "randomness", "costs")
        recording = ProfileRequest(out=run, **{part: getattr(request, part) for part in parts})
        profile(recording, progress=progress)
        return examine(_of_run(request, run, evidence))


def _refuse_others(request: DoctorRequest, looked_at: str, *used: str) -> None:
    others = given_settings(request).difference(used)
    options = {entry.name: entry.option for entry in settings_of(DoctorRequest)} | {"folder": "the run"}
    if idle := [option for name, option in options.items() if name in others]:
        raise DraftgaugeError(f"{looked_at} is looked at as it is: leave out {', '.join(idle)}, or it")


def _of_run(request: DoctorRequest, run: Path, of_files: Evidence | None) -> Evidence:
    manifest, trace = Manifest.load(run), read_trace(run)
    spec = replace(request.pair, target=manifest.target.source, drafter=manifest.drafts_with)
    spec = replace(spec, loading=replace(spec.loading, tokenizer=manifest.tokenizer or spec.loading.tokenizer))
    if of_files is None:
        try:
            for entry in filter(None, (manifest.target, manifest.draft)):
                files_of(entry.source)  # nothing is fetched for a run whose models are not here
            of_files = _of_files(spec, manifest.target.source, *drafter_of(spec))
        except DraftgaugeError as error:  # models that are no longer there
            warn(f"the files of the models are not looked at: {error}")
            of_files = Evidence(manifest.target.source, manifest.drafter)
    costs = UNKNOWN
    if request.costs_file is not None:
        curves = read_costs(request.costs_file, request.server or "draftgauge")
        costs = curves[min(curves)]
    elif (run / COSTS_NAME).is_file():
        costs = run_costs(run)
    held = UNKNOWN if of_files.compression is None else (manifest.target.compression, of_files.compression[1])
    evidence = replace(of_files, trace=trace, costs=costs, compression=held)
    if manifest.drafter == CHECKPOINT and trace.sampled is None and evidence.tokenizer is not None:
        with suppress(ModelError):  # a target that does not fit here
            evidence = replace(evidence, layer_rates=_layer_rates(manifest, request.pair, trace))
    return evidence


def _of_files(spec: PairSpec, target: str, kind: str, source: str | Path | None) -> Evidence:
    """What the files of a pair say of it, before any weights are loaded."""
    folder, trusted = target_of(spec), spec.loading.trust_remote_code
    tokenizer = load_tokenizer(spec.loading.tokenizer or folder, trusted)
    evidence = Evidence(target, kind, tokenizer)
    if source is None:
        return evidence
    if drafter_kind(kind) is LanguageModelSource and not is_gguf(source):
        theirs = load_tokenizer(source, trusted, role="draft")
        held = (quantisation_method(folder) or UNCOMPRESSED, quantisation_method(source) or UNCOMPRESSED)
        return replace(evidence, draft_tokenizer=theirs, compression=UNKNOWN if is_gguf(folder) else held)
    if kind == CHECKPOINT:
        config = read_config(source)
        layout, method = read_layout(config, str(source)), method_of(config, source)
        error, tensors = "", read_tensors(source, spec.loading.allow_pickle)
        try:
            target_ids(source, layout, tensors)
        except ModelError as wrong:
            error = str(wrong)
        named = drafter_kind(kind).trained_for(source) or ""
        same, like = (Path(named).name.lower() == Path(target).name.lower(), Path(named).name.lower() in target.lower())
        longest = layout.decoder.rope.get("max_position_embeddings") or UNKNOWN
        made_for = "" if same else UNKNOWN if like or Path(target).is_dir() else named  # a copy, as -AWQ, or another
        held = (UNCOMPRESSED, method or UNCOMPRESSED)
        return replace(evidence, map_error=error, made_for=made_for, longest=longest, compression=held)
    if is_drafter(source):
        description = read_description(Path(source))
        config = description["config"]
        known, other = known_fingerprint(folder), config.get("target_source") or "another checkpoint"
        made_for = UNKNOWN if known is None else "" if config["target_fingerprint"] == known else other
        return replace(evidence, made_for=made_for, compression=(UNCOMPRESSED, trained_compression(description)))
    return evidence


def _layer_rates(manifest: Manifest, spec: PairSpec, trace: Trace) -> dict[tuple[int, ...], float]:
    """How often a checkpoint's first token is right if it reads its own layers, and those that a miscount of one, or
    another order, would have it read."""
    pair = load_pair_of(manifest, spec)
    assert isinstance(pair.draft_source, CheckpointSource)
    net, target = pair.draft_source.net, pair.target
    own, layers = net.layout.taps, target.module.config.get_text_config().num_hidden_layers
    readings = (own, tuple(layer - 1 for layer in own), tuple(layer + 1 for layer in own), own[::-1])
    rates: dict[tuple[int, ...], float] = {}
    for reading in readings:
        if min(reading) < 0 or max(reading) >= layers - 1:
            continue
        taps, right = attach_taps(target, TapPlan(reading)), []
        drafter = CheckpointDrafter(net, target, taps, pair.end_tokens)  # type: ignore[arg-type]
        for prompt, tokens in list(zip(trace.prompts, trace.outputs, strict=True))[:COMPARED]:
            text, output = list(prompt.prompt_token), tokens.tolist()
            target.reset()
            target.forward(upload([*text, *output], target.spec.device), last_only=True)
            drafts = drafter.draft_everywhere(text, output, 1, target.spec.vocabulary)
            right += (drafts.tokens[:, 0] == tokens).tolist()
        rates[reading] = sum(right) / len(right)
    return rates
