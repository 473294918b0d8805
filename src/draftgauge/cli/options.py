"""Options that several verbs take, defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str, typer.Option(help="Target model: a Hugging Face id, a folder, or 'reference' (the bundled one).")
]
Draft = Annotated[str, typer.Option(help="Draft model: an id, a folder, 'reference' or 'reference/draft-small'.")]
DrafterKind = Annotated[
    str,
    typer.Option(
        help="What proposes tokens: 'language_model', 'prompt_lookup' (no draft model), or the folder of a trained drafter."
    ),
]
Compression = Annotated[str, typer.Option(help="Target compression: none, fp16, bf16, int8, nf4; several with commas.")]
Prompts = Annotated[
    Path | None,
    typer.Option(help="JSON Lines with 'prompt', 'turns' or 'messages'; the bundled test prompts if left out."),
]
Limit = Annotated[int | None, typer.Option(help="Use the first so many prompts only.")]
PerTask = Annotated[int | None, typer.Option(help="Use the first so many prompts of each task and split only.")]
Tasks = Annotated[str | None, typer.Option(help="Use these tasks only, separated by commas.")]
Split = Annotated[str | None, typer.Option(help="Use the prompts of this split only: train, validation or test.")]
MaxNewTokens = Annotated[int, typer.Option(help="Output tokens a prompt at most.")]
GammaMax = Annotated[int, typer.Option(help="Longest draft to record.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; a GPU if there is one.")]
Engine = Annotated[
    str,
    typer.Option(help="'lean' (own decoder), 'modules' (transformers), or 'auto': lean where it is known to be right."),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run model code that comes with a checkpoint.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the measured rows to this file.")]
Policy = Annotated[
    list[str] | None,
    typer.Option("--policy", "-p", help="A policy, e.g. none, fixed (every length), fixed:4, hf-heuristic."),
]


def listed(text: str | None) -> tuple[str, ...]:
    """The parts of a comma-separated option."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())
