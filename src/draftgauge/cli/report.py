"""``draftgauge report``: one self-contained HTML file about recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli.console import console, friendly_errors


def report(
    folder: Annotated[Path, typer.Argument(help="A recorded run, or a folder of runs.")],
    out: Annotated[Path | None, typer.Option(help="The file to write; report.html in the folder if left out.")] = None,
    bench: Annotated[
        list[Path] | None, typer.Option(help="JSON of `draftgauge bench`, to show live figures; may be repeated.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="A policy to judge on test prompts, by name or fitted file; may be repeated."
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the report.")] = "How far to draft",
) -> None:
    """Draw acceptance, speed against gamma, costs and token timelines; the file works offline."""
    from draftgauge.api.report import write_report

    with friendly_errors():
        path = write_report(folder, out or folder / "report.html", bench or [], title, policy)
        console.print(f"wrote {path}", highlight=False)
