"""What a profile will do, with everything checked before any of it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from draftgauge.api.pair import Pair
from draftgauge.api.runs import first_per_task, prompt_file, prompt_name
from draftgauge.core.errors import DraftgaugeError, PromptError, TraceError
from draftgauge.core.prompts import Prompt, prompts_sha256, read_prompts
from draftgauge.core.provenance import command_line, environment, timestamp
from draftgauge.drafters.refused import DraftsRefused
from draftgauge.drafters.source import drafter_kind, drafter_kinds
from draftgauge.models.compression import activation_dtype, check_nf4_widths, draft_compression, quantization_config
from draftgauge.models.reference import resolve_source
from draftgauge.traces.manifest import MANIFEST_NAME, Manifest, ModelEntry, PromptsEntry
from draftgauge.traces.schema import GREEDY_VERSION, SAMPLED_VERSION
from draftgauge.verification import Sampling

LONG_PROMPTS = ("error", "truncate", "skip")
SHOWN = 5

EncodedPrompt = tuple[Prompt, list[int]]


@dataclass(frozen=True)
class Request:
    """What was asked for; see :func:`draftgauge.api.profile.profile`.

    Raises:
        DraftgaugeError: for a value out of its range, an unknown name, or a library that a compression lacks.
    """

    compressions: tuple[str, ...]
    drafter: str
    gamma_max: int
    max_new_tokens: int
    limit: int | None
    per_task: int | None
    long_prompts: str
    repeats: int
    seed: int
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        counts = {name: getattr(self, name) for name in ("gamma_max", "max_new_tokens", "limit", "per_task", "repeats")}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise DraftgaugeError(f"{name} must be at least 1, not {value}")
        if not self.compressions or len(set(self.compressions)) < len(self.compressions):
            raise DraftgaugeError(
                f"name at least one compression, and each once, not {', '.join(self.compressions) or 'none at all'}"
            )
        for compression in self.compressions:
            quantization_config(compression, torch.device("cpu"))
        if not self.sampling.greedy and not issubclass(drafter_kind(self.drafter).drafter_type, DraftsRefused):
            able = [kind.name for kind in drafter_kinds().values() if issubclass(kind.drafter_type, DraftsRefused)]
            raise DraftgaugeError(
                f"at a temperature above 0 a trace is recorded with the drafter {' or '.join(able)}, not {self.drafter}: "
                "only there the draft from one position tells of the next ones"
            )
        if self.long_prompts not in LONG_PROMPTS:
            raise DraftgaugeError(f"long_prompts must be one of {', '.join(LONG_PROMPTS)}, not {self.long_prompts!r}")


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


def choose_prompts(
    prompts: str | Path | None, request: Request, tasks: Sequence[str] | None, split: str | None
) -> tuple[Path, list[Prompt]]:
    """The prompt file and the prompts to record from it."""
    path = prompt_file(prompts, split or "test")
    chosen = first_per_task(read_prompts(path, None, tasks, split), request.per_task)
    return path, chosen[: request.limit]


def encode_prompts(pair: Pair, prompts: Sequence[Prompt], path: Path, request: Request) -> list[EncodedPrompt]:
    """Token ids of the prompts; those longer than the models take are refused, truncated to their end, or left out.

    Raises:
        PromptError: for a prompt that gives no tokens or is too long, or if none is left.
    """
    longest = pair.context - request.max_new_tokens
    if longest < 1:
        raise PromptError(
            f"the models take {pair.context} tokens, which max_new_tokens {request.max_new_tokens} fill: lower it"
        )
    encoded: list[EncodedPrompt] = []
    for prompt in prompts:
        try:
            encoded.append((prompt, pair.encode(prompt)))
        except PromptError as error:
            raise PromptError(f"{path}, prompt {prompt.identifier}: {error}") from error
    long = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) > longest]
    if long and request.long_prompts == "error":
        shown = ", ".join(f"{prompt.identifier} ({len(tokens)} tokens)" for prompt, tokens in long[:SHOWN])
        more = f" and {len(long) - SHOWN} more" if len(long) > SHOWN else ""
        raise PromptError(
            f"{path}: {shown}{more} longer than the {longest} tokens that the models take beside max_new_tokens {request.max_new_tokens}: "
            "lower max_new_tokens, or choose long_prompts truncate (keep their end) or skip"
        )
    if request.long_prompts == "truncate":
        return [(prompt, tokens[-longest:]) for prompt, tokens in encoded]
    kept = [(prompt, tokens) for prompt, tokens in encoded if len(tokens) <= longest]
    if not kept:
        raise PromptError(
            f"{path}: every prompt is longer than the {longest} tokens that the models take: choose long_prompts truncate"
        )
    return kept


def check_widths(pair: Pair, compressions: Sequence[str], trust_remote_code: bool) -> None:
    """Refuse at once a compression that could not be loaded only later, when its turn comes.

    Raises:
        ModelError: if the target's widths do not fit nf4 on a CPU.
    """
    if "nf4" in compressions and pair.target.spec.device.type == "cpu":
        source = str(resolve_source(str(pair.sources["target"]), "target"))
        check_nf4_widths(AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code), trust_remote_code)


def make_manifests(pair: Pair, prompts: Sequence[Prompt], path: Path, request: Request) -> dict[str, Manifest]:
    """The manifest of the run of each compression, from a pair loaded at the first of them."""
    device = pair.target.spec.device
    fingerprints = pair.fingerprints()
    machine = environment()
    first = Manifest(
        draftgauge=machine["versions"].get("draftgauge", "not installed"),
        command=command_line(),
        created=timestamp(),
        environment=machine,
        target=_entry(pair, "target", fingerprints),
        draft=None if pair.sources["draft"] is None else _entry(pair, "draft", fingerprints),
        drafter=request.drafter,
        device=str(device),
        gamma_max=request.gamma_max,
        max_new_tokens=request.max_new_tokens,
        seed=request.seed,
        prompts=PromptsEntry(
            prompt_name(path),
            prompts_sha256(path),
            len(prompts),
            tuple(dict.fromkeys(prompt.task for prompt in prompts)),
        ),
        schema_version=GREEDY_VERSION if request.sampling.greedy else SAMPLED_VERSION,
        temperature=request.sampling.temperature,
        top_k=request.sampling.top_k,
        top_p=request.sampling.top_p,
    )
    return {compression: _for_compression(first, compression, device) for compression in request.compressions}


def _entry(pair: Pair, role: str, fingerprints: dict[str, str | None]) -> ModelEntry:
    source, fingerprint = pair.sources[role], fingerprints[role]
    assert source is not None
    assert fingerprint is not None
    model = pair.target.spec if role == "target" else pair.draft_source
    return ModelEntry(source, fingerprint, "none", model.family, model.engine, "float32")


def _for_compression(manifest: Manifest, compression: str, device: torch.device) -> Manifest:
    def compressed(entry: ModelEntry, name: str) -> ModelEntry:
        return replace(entry, compression=name, dtype=str(activation_dtype(name, device)).removeprefix("torch."))

    drafts: Any = manifest.draft and compressed(manifest.draft, draft_compression(compression))
    return replace(manifest, target=compressed(manifest.target, compression), draft=drafts)
