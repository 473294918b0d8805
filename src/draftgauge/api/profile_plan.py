"""What a profile will do, with everything checked before any of it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftgauge.api.conversation import PromptEncoder, with_answers
from draftgauge.api.pair import Pair, drafter_of
from draftgauge.api.requests import ProfileRequest, PromptSpec
from draftgauge.api.runs import EncodedPrompt, first_per_task, prompt_file, prompt_name
from draftgauge.core.errors import DraftgaugeError, PromptError, TraceError
from draftgauge.core.files import file_sha256
from draftgauge.core.prompts import Prompt, prompts_sha256, read_prompts
from draftgauge.core.provenance import command_line, environment, timestamp
from draftgauge.core.rendering import turns_of
from draftgauge.drafters.refused import DraftsRefused
from draftgauge.drafters.source import drafter_kind, drafter_kinds
from draftgauge.models.compression import (
    QUANTISED,
    activation_dtype,
    check_quantises,
    draft_compression,
    quantization_config,
)
from draftgauge.models.spec import read_configuration
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest, ModelEntry, OutputsEntry, PromptsEntry
from draftgauge.verification import Sampling

SHOWN = 5


def check_recording(compressions: Sequence[str], drafter: str, sampling: Sampling) -> None:
    """Refuse what could not be recorded.

    Raises:
        DraftgaugeError: for an unknown compression, a library that one lacks, or a kind of drafter of which sampled
            decoding cannot be recorded.
    """
    for compression in compressions:
        quantization_config(compression, torch.device("cpu"))
    if not sampling.greedy and not issubclass(drafter_kind(drafter).drafter_type, DraftsRefused):
        able = [kind.name for kind in drafter_kinds().values() if issubclass(kind.drafter_type, DraftsRefused)]
        raise DraftgaugeError(
            f"at a temperature above 0 a trace is recorded with the drafter {' or '.join(able)}, not {drafter}: "
            "only there the draft from one position tells of the next ones"
        )


def run_folders(out: Path, compressions: Sequence[str]) -> dict[str, Path]:
    """The run folder of each compression: ``out`` itself for a single one, else a folder in it for each.

    Raises:
        TraceError: if ``out`` is laid out the other way already.
    """
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


def choose_prompts(spec: PromptSpec) -> tuple[Path, list[Prompt]]:
    """The prompt file and the prompts to take from it; every turn counts as one."""
    path = prompt_file(spec.prompts, spec.split or "test")
    chosen = first_per_task(turns_of(read_prompts(path, None, spec.tasks, spec.split), spec.turns), spec.per_task)
    return path, chosen[: spec.limit]


def encode_prompts(
    pair: PromptEncoder, prompts: Sequence[Prompt], path: Path, max_new_tokens: int, spec: PromptSpec
) -> list[EncodedPrompt]:
    """Token ids of the prompts; those longer than the models take are refused, truncated to their end, or left out.

    Args:
        pair: what encodes them, answers earlier turns, and how long a sequence it takes.
        prompts, path: the prompts and the file they are from.
        max_new_tokens: room that each leaves for its output.
        spec: how they become text, and what becomes of long ones.

    Raises:
        PromptError: for a prompt that gives no tokens or is too long, or if none is left.
    """
    longest = pair.context - max_new_tokens
    if longest < 1:
        raise PromptError(
            f"the models take {pair.context} tokens, which max_new_tokens {max_new_tokens} fill: lower it"
        )
    rendering, long_prompts = spec.rendering, spec.long_prompts
    encoded: list[EncodedPrompt] = []
    for prompt in with_answers(pair, prompts, rendering, max_new_tokens, long_prompts == "truncate"):
        try:
            encoded.append((prompt, pair.encode(prompt, rendering)))
        except PromptError as error:
            raise PromptError(f"{path}, prompt {prompt.identifier}: {error}") from error
    long = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) > longest]
    if long and long_prompts == "error":
        shown = ", ".join(f"{prompt.identifier} ({len(tokens)} tokens)" for prompt, tokens in long[:SHOWN])
        more = f" and {len(long) - SHOWN} more" if len(long) > SHOWN else ""
        raise PromptError(
            f"{path}: {len(long)} of {len(encoded)} prompts are longer than the {longest} tokens that the models take "
            f"beside max_new_tokens {max_new_tokens} (by id: {shown}{more}): lower "
            "max_new_tokens, or choose --long-prompts truncate (keep their end) or skip"
        )
    if long_prompts == "truncate":
        return [(prompt, tokens[-longest:]) for prompt, tokens in encoded]
    kept = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= longest]
    if not kept:
        raise PromptError(
            f"{path}: every prompt is longer than the {longest} tokens that the models take: choose --long-prompts "
            "truncate"
        )
    return kept


def check_compressions(pair: Pair, compressions: Sequence[str], trust_remote_code: bool) -> None:
    """Refuse at once a compression that could not be loaded only later, when its turn comes.

    Raises:
        ModelError: if bitsandbytes cannot quantise the target so.
    """
    later = [name for name in compressions if name in QUANTISED and name != pair.compression]
    if later and pair.target.module is not None:  # a GGUF file has none
        config = read_configuration(str(pair.sources["target"]), trust_remote_code)
        for name in later:
            check_quantises(config, name, pair.target.spec.device, trust_remote_code)


def make_manifests(pair: Pair, prompts: Sequence[Prompt], path: Path, request: ProfileRequest) -> dict[str, Manifest]:
    """The manifest of the run of each compression, from a pair loaded at the first of them."""
    device = pair.target.spec.device
    fingerprints = pair.fingerprints()
    machine = environment()
    drafter, _ = drafter_of(request.pair)
    first = Manifest(
        draftgauge=machine["versions"].get("draftgauge", "not installed"),
        command=command_line(),
        created=timestamp(),
        environment=machine,
        target=_entry(pair, "target", fingerprints),
        draft=None if pair.sources["draft"] is None else _entry(pair, "draft", fingerprints),
        drafter=drafter,
        device=str(device),
        gamma_max=request.drafts.gamma_max,
        max_new_tokens=request.output.max_new_tokens,
        seed=request.randomness.seed,
        prompts=PromptsEntry(
            prompt_name(path),
            prompts_sha256(path),
            len(prompts),
            tuple(dict.fromkeys(prompt.task for prompt in prompts)),
        ),
        temperature=request.sampling.temperature,
        top_k=request.sampling.top_k,
        top_p=request.sampling.top_p,
        rendering=request.prompts.rendering,
        outputs=None if request.outputs is None else OutputsEntry(str(request.outputs), file_sha256(request.outputs)),
        tokenizer=request.pair.loading.tokenizer,
    )
    return {compression: _for_compression(first, compression, device) for compression in request.pair.compression}


def _entry(pair: Pair, role: str, fingerprints: dict[str, str | None]) -> ModelEntry:
    source, fingerprint = pair.sources[role], fingerprints[role]
    assert source is not None
    assert fingerprint is not None
    model = pair.target.spec if role == "target" else pair.draft_source
    runs = pair.target if role == "target" else pair.draft
    attention = "" if runs is None else runs.spec.attention
    return ModelEntry(source, fingerprint, "none", model.family, model.engine, "float32", attention)


def _for_compression(manifest: Manifest, compression: str, device: torch.device) -> Manifest:
    def compressed(entry: ModelEntry, name: str) -> ModelEntry:
        return replace(entry, compression=name, dtype=str(activation_dtype(name, device)).removeprefix("torch."))

    drafts: Any = manifest.draft and compressed(manifest.draft, draft_compression(compression))
    return replace(manifest, target=compressed(manifest.target, compression), draft=drafts)
