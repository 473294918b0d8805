"""``draftgauge generate``: one output, streamed, with the drafts shown if asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from draftgauge.api.requests import GenerateRequest
from draftgauge.cli.console import console, errors, progress

STYLES = {"accepted": "green", "text": "yellow", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}
STANDARD_INPUT = "/dev/stdin"


def show_text(text: str, origin: str, plain: bool = False) -> None:
    """Print a piece of an answer in the colour of how its last token came."""
    console.print(Text(text, style="" if plain else STYLES[origin]), end="", soft_wrap=True)


def generate(
    request: GenerateRequest,
    *,
    show_drafts: Annotated[bool, Parameter(help="Colour the text by how each token came.", negative=())] = False,
) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.generate import generate as run
    from draftgauge.api.generate import generation_row

    stream = show_text if show_drafts else partial(show_text, plain=True)
    if request.prompt == STANDARD_INPUT:
        request = replace(request, prompt=sys.stdin.read())
    with progress() as advance:
        _, result = run(request, on_text=stream, progress=advance)
    console.print()
    if show_drafts:
        legend = "  ".join(f"[{style}]{name}[/]" if style else name for name, style in STYLES.items())
        errors.print(legend)
    row = generation_row(request, result)
    looked_up = f" and {row['appended']} looked-up" if row["appended"] else ""
    errors.print(
        f"{row['tokens']} tokens in {row['steps']} steps ({row['tokens_per_step']:.2f} a step), "
        f"{row['accepted']} of {row['drafted']} drafted{looked_up} tokens accepted, "
        f"{row['tokens_per_second']:.0f} tokens/s",
        highlight=False,
    )
    return [row]
