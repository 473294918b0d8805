"""``draftgauge demo``: the whole path on the bundled pair, in two minutes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from draftgauge.cli.console import errors, progress, say, show_table
from draftgauge.cli.generate import STYLES, legend, show_text
from draftgauge.core.verb import describe_load, machine_load
from draftgauge.requests import DemoRequest

POLICIES = {
    "policy": "policy",
    "ratio_to_plain": "live x plain [95%]",
    "modelled_ratio": "modelled",
    "tokens_per_step": "tokens/step",
    "tokens_per_second": "tokens/s",
    "mismatches": "mismatches",
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
