"""``draftgauge generate``: one output, streamed, with the drafts shown if asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from rich.segment import Segment, Segments
from rich.text import Text

from draftgauge.cli.console import console, errors, progress
from draftgauge.core.table import speed
from draftgauge.requests import GenerateRequest

STYLES = {"accepted": "green", "text": "yellow", "corrected": "bold red", "bonus": "bold cyan", "plain": ""}
MARKS = {"accepted": "·", "text": "~", "corrected": "!", "bonus": "+", "plain": ""}
"""Marks before a token where there are no colours."""

LEGEND = {
    "accepted": "accepted from the draft",
    "text": "accepted from the text itself",
    "corrected": "the target's, in place of a rejected token",
    "bonus": "the target's, after a draft accepted whole",
    "plain": "the target's, without a draft",
}
SHOW_DRAFTS = "Colour the text by how each token came; where there are no colours, marks stand before tokens."
STANDARD_INPUT = "-"


def show_text(text: str, origin: str, plain: bool = False) -> None:
    coloured = not plain and _coloured()
    mark = "" if plain or coloured else MARKS[origin]
    style = console.get_style(STYLES[origin]) if coloured else None
    console.print(Segments([Segment(mark + text, style)]), end="", soft_wrap=True)


def legend(meanings: Mapping[str, str] = LEGEND) -> Text:
    entries = [
        Text(meaning, style=STYLES[name]) if _coloured() else Text(f"{MARKS[name] or '(no mark)'} {meaning}")
        for name, meaning in meanings.items()
    ]
    return Text("  ").join(entries)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _coloured() -> bool:
    return console.color_system is not None and not console.no_color


def generate(
    request: GenerateRequest,
    *,
    show_drafts: Annotated[bool, Parameter(help=SHOW_DRAFTS, negative=(), show_default=False)] = False,
) -> list[dict[str, Any]]:
    from draftgauge.api.generate import generate as run

    stream = show_text if show_drafts else partial(show_text, plain=True)
    if request.prompt == STANDARD_INPUT:
        # Bytes that are not UTF-8 are refused where the prompt is tokenised, as those of a prompt argument are.
        request = replace(request, prompt=sys.stdin.buffer.read().decode(errors="surrogateescape"))
    with progress() as advance:
        generated = run(request, on_text=stream, progress=advance)
    console.print()
    if show_drafts:
        errors.print(legend(), soft_wrap=True, highlight=False)
    row = {"policy": request.policy, "compression": ",".join(request.pair.compression), **generated.row()}
    kept = row["drafted"] - row["dropped"]
    proposed = kept + row["appended"]
    said = "drafted tokens accepted"
    if row["appended"]:
        said = f"tokens accepted that were drafted ({kept}) or looked up in the text ({row['appended']})"
    errors.print(
        f"{_counted(row['tokens'], 'token')} in {_counted(row['steps'], 'step')} "
        f"({row['tokens_per_step']:.2f} a step), {row['accepted']} of {proposed} {said}, "
        f"{speed(row['tokens_per_second'])} tokens/s",
        highlight=False,
        soft_wrap=True,
    )
    return [row]
