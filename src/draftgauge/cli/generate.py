"""``draftgauge generate``: one output, streamed, with the drafts shown if asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from draftgauge.api.requests import GenerateRequest
from draftgauge.cli.console import console, errors

STYLES = {"accepted": "green", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}
STANDARD_INPUT = "/dev/stdin"


def generate(
    request: GenerateRequest,
    *,
    show_drafts: Annotated[bool, Parameter(help="Colour the text by how each token came.", negative=())] = False,
) -> list[dict[str, Any]]:
    """Run and show."""
    from draftgauge.api.generate import generate as run
    from draftgauge.api.generate import generation_row

    def stream(text: str, origin: str) -> None:
        console.print(Text(text, style=STYLES[origin] if show_drafts else ""), end="", soft_wrap=True)

    if request.prompt == STANDARD_INPUT:
        request = replace(request, prompt=sys.stdin.read())
    _, result = run(request, on_text=stream)
    console.print()
    if show_drafts:
        legend = "  ".join(f"[{style}]{name}[/]" if style else name for name, style in STYLES.items())
        errors.print(legend)
    row = generation_row(request, result)
    errors.print(
        f"{row['tokens']} tokens in {row['steps']} steps ({row['tokens_per_step']:.2f} a step), "
        f"{row['accepted']} of {row['drafted']} drafted tokens accepted, {row['tokens_per_second']:.0f} tokens/s",
        highlight=False,
    )
    return [row]
