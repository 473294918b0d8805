"""``draftgauge generate``: a prompt completed under a policy, and ``demo``: the whole path on the bundled pair, in two
minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter
from rich.segment import Segment, Segments
from rich.text import Text

from draftgauge.cli.console import console, errors, progress, say, show_table
from draftgauge.core.table import speed
from draftgauge.core.verb import describe_load, machine_load
from draftgauge.requests import DemoRequest, GenerateRequest

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


POLICIES = {
    "policy": "policy",
    "ratio_to_plain": "live x plain [95%]",
    "modelled_ratio": "modelled",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "tokens/s",
    "mismatched_prompts": "outputs that differ",
    "near_ties": "of these near-ties",
}


def demo(request: DemoRequest) -> list[dict[str, Any]]:
    from draftgauge.api.demo import demo as run
    from draftgauge.api.report import REPORT_NAME

    begun = time.monotonic()
    left_out: list[str] = []

    def spent() -> str:
        gone = time.monotonic() - begun
        return f"{gone:.0f} s gone, {max(0.0, request.seconds - gone):.0f} s left"

    with progress() as advance:

        def on_rows(name: str, rows: Sequence[dict[str, Any]]) -> None:
            if name == "first":
                _show_first(rows[0])
            elif name == "verdict":
                say(f"{rows[0]['compression']}: {rows[0]['verdict']}")
            elif not rows:
                left_out.append(name)
                say(f"Target {name}: no time left.")
            else:
                _show_compression(name, rows)
            errors.print(f"{spent()}\n", highlight=False)

        errors.print(Text("How each token came: ") + legend({name: name for name in STYLES}), highlight=False)
        rows = run(request, progress=advance, on_text=show_text, on_rows=on_rows)
    if left_out:
        say(f"Run the same command with a larger --seconds to add {' and '.join(left_out)}.")
    say(describe_load(machine_load()))
    say(f"{time.monotonic() - begun:.0f} s. Open {request.out / REPORT_NAME} in a browser.")
    return rows


def _show_first(row: dict[str, Any]) -> None:
    same = "the same tokens" if row["same_tokens"] else "other tokens"
    say(
        f"\n{row['tokens']} tokens, {row['tokens_per_step']:.2f} a step, {row['ratio_to_plain']:.2f} x plain decoding "
        f"({same}) on this one prompt."
    )


def _show_compression(name: str, rows: Sequence[dict[str, Any]]) -> None:
    pooled = [row for row in rows if row["task"] == "all"]
    count = pooled[0]["prompts"]
    prompts = "one prompt, so without intervals" if count == 1 else f"{count} prompts, all tasks together"
    show_table(f"Target {name}, decoded live: {prompts}", pooled, POLICIES)
