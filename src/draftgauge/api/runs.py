"""Recorded runs: which folder holds what, and the pair and prompts that its manifest names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.requests import PairSpec, PromptSpec
from draftgauge.core.errors import TraceError
from draftgauge.core.prompts import Prompt, prompts_sha256, read_prompts
from draftgauge.models.reference import PAIR_FOLDER
from draftgauge.traces.costs import CostCurve
from draftgauge.traces.manifest import COSTS_NAME, Manifest
from draftgauge.traces.reader import find_runs, read_trace
from draftgauge.traces.trace import Trace

BUNDLED_PROMPTS = "reference:"
ALL_SPLITS = "all"

EncodedPrompt = tuple[Prompt, list[int]]


def prompt_file(prompts: str | Path | None, split: str = "test") -> Path:
    """What a prompts argument means: a path, ``reference:SPLIT`` and None for bundled prompts, ``reference:all`` for
    all of them.
    """
    if prompts is None:
        return PAIR_FOLDER / "prompts" / f"{split}.jsonl"
    if str(prompts) == f"{BUNDLED_PROMPTS}{ALL_SPLITS}":
        return PAIR_FOLDER / "prompts"
    if str(prompts).startswith(BUNDLED_PROMPTS):
        return PAIR_FOLDER / "prompts" / f"{str(prompts).removeprefix(BUNDLED_PROMPTS)}.jsonl"
    return Path(prompts)


def prompt_name(path: Path) -> str:
    """How a manifest names a prompt file: bundled ones by their split, so that the name holds on every machine."""
    if path == PAIR_FOLDER / "prompts":
        return f"{BUNDLED_PROMPTS}{ALL_SPLITS}"
    return f"{BUNDLED_PROMPTS}{path.stem}" if path.parent == PAIR_FOLDER / "prompts" else str(path)


def select_runs(folder: Path) -> list[tuple[Path, Manifest]]:
    """The runs at a place with their manifests, uncompressed targets first."""
    order = ("none", "bf16", "fp16", "int8", "nf4")
    runs = [(run, Manifest.load(run)) for run in find_runs(folder)]
    return sorted(runs, key=lambda r: (order.index(r[1].target.compression), r[0].name))


def read_run(run: Path, tasks: Sequence[str] | None = None, split: str | None = None) -> tuple[Trace, CostCurve]:
    """Trace and cost curve of a run."""
    return read_trace(run, tasks, split), CostCurve.load(run / COSTS_NAME)


def load_pair_of(manifest: Manifest, spec: PairSpec | None = None) -> Pair:
    """Load the models that a trace was recorded with, or its target with another drafter.

    Args:
        manifest: of the trace.
        spec: how to load the models; a drafter that it names drafts in place of the recorded one.

    Raises:
        TraceError: if the models at those places are not the recorded ones any more.
    """
    asked = spec or PairSpec()
    pair = load_pair(
        replace(
            asked,
            target=manifest.target.source,
            draft=manifest.draft.source if manifest.draft is not None else None,
            compression=(manifest.target.compression,),
            drafter=asked.drafter or manifest.drafter,
        )
    )
    found = pair.fingerprints()
    for role, entry in (("target", manifest.target), ("draft", manifest.draft if asked.drafter is None else None)):
        if entry is not None and found[role] != entry.fingerprint:
            raise TraceError(
                f"the {role} at {entry.source} is not the model that this trace was recorded with: profile it into a "
                "new folder"
            )
    return pair


def prompts_of(run: Path, manifest: Manifest, pair: Pair, spec: PromptSpec | None = None) -> list[EncodedPrompt]:
    """The recorded prompts of a run with their token ids.

    Args:
        run, manifest: the run.
        pair: whose tokenizer it is.
        spec: which of the recorded prompts; all if None.

    Raises:
        TraceError: if the prompt file has changed since.
    """
    asked = spec or PromptSpec()
    path = prompt_file(manifest.prompts.path)
    if path.exists() and prompts_sha256(path) != manifest.prompts.sha256:
        raise TraceError(f"{path} has changed since the trace in {run} was recorded: record it again into a new folder")
    recorded = {p.index: p.prompt_tokens for p in read_trace(run).prompts}
    chosen = [p for p in read_prompts(path, None, asked.tasks, asked.split) if p.index in recorded]
    prompts = first_per_task(chosen, asked.per_task)[: asked.limit]
    # A prompt that was recorded truncated is decoded truncated: its end is what was kept.
    return [(p, pair.encode(p)[-recorded[p.index] :]) for p in prompts]


def first_per_task(prompts: list[Prompt], count: int | None) -> list[Prompt]:
    """The first ``count`` prompts of every task in every split, in the file's order; all of them if None."""
    if count is None:
        return prompts
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.task, prompt.split] += 1
        if seen[prompt.task, prompt.split] <= count:
            kept.append(prompt)
    return kept
