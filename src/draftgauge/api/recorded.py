"""The pair and the prompts that the manifest of a recorded run names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from draftgauge.api.conversation import with_answers
from draftgauge.api.pair import Pair, load_pair
from draftgauge.api.requests import PairSpec, PromptSpec
from draftgauge.api.runs import EncodedPrompt, first_per_task, prompt_file
from draftgauge.core.errors import TraceError
from draftgauge.core.prompts import prompts_sha256, read_prompts
from draftgauge.core.rendering import turns_of
from draftgauge.traces.manifest import Manifest
from draftgauge.traces.reader import read_trace


def load_pair_of(manifest: Manifest, spec: PairSpec | None = None) -> Pair:
    """Load the models that a trace was recorded with, or its target with another drafter.

    Args:
        manifest: of the trace.
        spec: how to load the models; a drafter that it names drafts in place of the recorded one.

    Raises:
        TraceError: if the models at those places are not the recorded ones any more.
    """
    asked = spec or PairSpec()
    loading = replace(asked.loading, tokenizer=asked.loading.tokenizer or manifest.tokenizer)
    pair = load_pair(
        replace(
            asked,
            target=manifest.target.source,
            draft=manifest.draft.source if manifest.draft is not None else None,
            compression=(manifest.target.compression,),
            drafter=asked.drafter or manifest.drafter,
            loading=loading,
        )
    )
    fingerprints = pair.fingerprints()
    for role, entry in (("target", manifest.target), ("draft", manifest.draft if asked.drafter is None else None)):
        if entry is not None and fingerprints[role] != entry.fingerprint:
            raise TraceError(
                f"the {role} at {entry.source} is not the model that this trace was recorded with: profile it into a "
                "new folder"
            )
    return pair


def prompts_of(
    run: Path,
    manifest: Manifest,
    pair: Pair,
    spec: PromptSpec | None = None,
    among: Collection[int] | None = None,
) -> list[EncodedPrompt]:
    """The recorded prompts of a run with their token ids.

    Args:
        run, manifest: the run.
        pair: whose tokenizer it is.
        spec: which of the recorded prompts; all if None.
        among: their indices; any if None.

    Raises:
        TraceError: if the prompt file has changed since, none of these prompts was recorded, or the target answers
            earlier turns differently than then.
    """
    asked = spec or PromptSpec()
    path = prompt_file(manifest.prompts.path)
    if path.exists() and prompts_sha256(path) != manifest.prompts.sha256:
        raise TraceError(f"{path} has changed since the trace in {run} was recorded: record it again into a new folder")
    recorded = {p.index: p.prompt_tokens for p in read_trace(run).prompts}
    rendering = manifest.rendering
    turns = turns_of(read_prompts(path, None, asked.tasks, asked.split), rendering.turns)
    there = [p for p in turns if p.index in recorded and (among is None or p.index in among)]
    if not there:
        raise TraceError(f"{run} holds none of these prompts: ask for others, or record them")
    chosen = first_per_task(there, asked.per_task)[: asked.limit]
    prompts = with_answers(pair, chosen, rendering, manifest.max_new_tokens, truncate=True)
    # A prompt that was recorded truncated is decoded truncated: its end is what was kept.
    encoded = [(p, pair.encode(p, rendering)[-recorded[p.index] :]) for p in prompts]
    short = [p.identifier for p, tokens in encoded if len(tokens) < recorded[p.index]]
    if short:
        raise TraceError(
            f"the target answers the turns before {', '.join(short)} differently than when {run} was recorded: record "
            "it again with this engine"
        )
    return encoded
