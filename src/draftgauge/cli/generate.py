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
LEGEND = {
    "accepted": "accepted from the draft",
    "text": "accepted from the text itself",
    "corrected": "the target's, in place of a rejected token",
    "bonus": "the target's, after a draft accepted whole",
    "plain": "the target's, without a draft",
}
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
        legend = "  ".join(f"[{style}]{LEGEND[name]}[/]" if style else LEGEND[name] for name, style in STYLES.items())
        errors.print(legend, soft_wrap=True, highlight=False)
    row = generation_row(request, result)
    proposed = row["drafted"] + row["appended"]
    said = "drafted tokens accepted"
    if row["appended"]:
        said = f"tokens accepted that were drafted ({row['drafted']}) or looked up in the text ({row['appended']})"
    errors.print(
        f"{row['tokens']} tokens in {row['steps']} steps ({row['tokens_per_step']:.2f} a step), "
        f"{row['accepted']} of {proposed} {said}, {row['tokens_per_second']:.0f} tokens/s",
        highlight=False,
        soft_wrap=True,
    )
    return [row]
