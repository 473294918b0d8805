"""What an engine's flags name of a recorded run: its models, its drafter's format, how it decoded."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import COMPRESSIONS
from draftgauge.models.folder import resolve_draft, resolve_source
from draftgauge.serving.engines import DFLASH, EAGLE3, MTP, Deployment, Engine, deployment_of
from draftgauge.traces.engine_costs import BY_DRAFTGAUGE
from draftgauge.traces.run import Manifest, Run

REUSE, CHECKPOINT = "reuse", "checkpoint"
DESCRIPTION = "drafter.json"  # beside the weights that `draftgauge train` writes
OWN = ("draftgauge", "gguf")  # engines of ``draftgauge generate``


def deployment_for(
    engine: Engine, manifest: Manifest, costs: Path, format_: str | None, drafted_by: str | None
) -> tuple[Deployment, str]:
    """What flags name of a run, and a command to run before them; empty where none is needed."""
    deployment = deployment_of(manifest, costs)
    if engine.name not in OWN:  # which do not know the bundled models by name
        target, tokenizer = (str(resolve_source(name)) for name in (deployment.target, deployment.tokenizer or ""))
        draft = resolve_draft(deployment.draft)
        deployment = replace(deployment, target=target, draft=draft, tokenizer=tokenizer or None)
    deployment = replace(deployment, proposer=drafted_by == BY_DRAFTGAUGE, options=recorded_with(manifest))
    first = ""
    if format_ is not None:
        draft = deployment.draft
        served = draft if manifest.drafter == CHECKPOINT else f"{draft.rstrip('/')}-{format_}"
        deployment = replace(deployment, drafter=format_, draft=served, proposer=False)
        first = "" if served == draft else shlex.join(["draftgauge", "export", draft, "--out", served])
    return deployment, first


def recorded_with(manifest: Manifest) -> tuple[str, ...]:
    """Options of ``draftgauge generate``, without the models, to decode as a run was recorded."""
    engine = manifest.target.engine
    words = ["--engine", engine] if engine.endswith("-fast") else []
    if manifest.target.compression in COMPRESSIONS[1:]:  # else the checkpoint itself was quantised
        words += ["--compression", manifest.target.compression]
    if manifest.temperature > 0:
        words += ["--temperature", f"{manifest.temperature:g}"]
        words += ["--top-k", str(manifest.top_k)] if manifest.top_k else []
        words += ["--top-p", f"{manifest.top_p:g}"] if manifest.top_p < 1 else []
    return (*words, *manifest.code_options, *manifest.rendering.options)


def checkpoint_format(engine: Engine, run: Run) -> str | None:
    """The format in which the engine loads a drafter that reads the target, a trained one after its export; None of
    other kinds. Refuses a drafter that the engine cannot run.
    """
    kind, draft = run.manifest.drafter, run.manifest.draft
    if engine.drafters and kind == MTP and draft is not None and (Path(draft.source) / DESCRIPTION).is_file():
        raise DraftgaugeError(
            f"{run} was recorded with the MTP head that training left in {draft.source}, and engines read it out of "
            "the target's own files: export it, copy it beside them, and record that"
        )
    if not engine.drafters or kind in engine.drafters:
        return None
    if kind in (REUSE, CHECKPOINT) and EAGLE3 in engine.drafters and draft is not None:
        format_, known = draft.family, list(engine.drafters)
        if kind == REUSE:
            from draftgauge.drafters.formats import dflash, eagle3
            from draftgauge.drafters.reuse.persistence import read_config

            config = read_config(Path(draft.source))
            format_, layout = (DFLASH, dflash) if config.block else (EAGLE3, eagle3)
            layout.check_exportable(config)
            lacks = eagle3.llama_cpp_lacks(config) if engine.name == "llama-server" and not config.block else None
            known = [] if lacks else list(engine.exported)
        if format_ in known:
            return format_
        kind = f"{kind} ({format_})"
    named = f"drafter {kind}".replace(f"drafter {REUSE}", "trained drafter")
    raise DraftgaugeError(
        f"{run} was recorded with the {named}, for which draftgauge writes no flags of {engine.name} (it does for "
        f"{', '.join(engine.drafters)}; {engine.name} {engine.version} itself runs {', '.join(engine.runs)}): "
        "record a run with one of these, or serve a drafter of the engine's own and give its answers with --requests"
    )
