"""``draftgauge study``: the papers' comparisons as runnable studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftgauge.cli import options as o
from draftgauge.cli.console import errors, friendly_errors, progress, save_json, show_table

app = typer.Typer(no_args_is_help=True, help="The papers' comparisons as runnable studies.")
EXIT_INCOMPLETE = 1


@app.command("kvshot")
def kvshot(
    out: Annotated[Path, typer.Option(help="Folder of the study; the same folder goes on where it was stopped.")],
    preset: Annotated[
        str, typer.Option(help="smoke, quick (45 minutes on two cores), depth (quick and deeper KV drafters) or full.")
    ] = "smoke",
    target: o.Target = "reference",
    prompts: Annotated[
        Path | None, typer.Option(help="Training prompts, which the target answers; generated for 'reference'.")
    ] = None,
    held_out: Annotated[
        str | None, typer.Option(help="Prompts to measure on; the bundled test prompts if left out.")
    ] = None,
    executor: Annotated[str, typer.Option(help="'local', one cell after the other, or 'ray', on a cluster.")] = "local",
    cpus: Annotated[int, typer.Option(min=1, help="CPUs that each cell asks Ray for.")] = 1,
    gpus: Annotated[
        float, typer.Option(min=0, help="GPUs that each cell asks Ray for; a share such as 0.5 puts two cells on one.")
    ] = 0,
    device: o.Device = None,
    json: o.Json = None,
) -> None:
    """Train and compare drafters that reuse hidden states, the KV cache, both or neither; a report is written to the folder."""
    from draftgauge.api.study import REPORT_NAME, study_kvshot
    from draftgauge.studies.kvshot.results import summary

    with friendly_errors(f"Finished cells are kept in {out}; the same command goes on from there."):
        with progress() as advance:
            found = study_kvshot(
                out,
                preset,
                target=target,
                prompts=prompts,
                held_out=held_out,
                executor=executor,
                cpus=cpus,
                gpus=gpus,
                device=device,
                progress=advance,
            )
        columns = {
            "drafter": "drafter",
            "alpha_0": "alpha 0",
            "alpha_3": "alpha 3",
            "alpha_6": "alpha 6",
            "retention": "retention",
            "mat": "MAT",
            "mat_low": "95% from",
            "mat_high": "to",
            "live_mat": "live MAT",
            "tree_mat": "tree MAT",
        }
        show_table("Pooled over seeds", summary(found.rows), columns)
        verdicts = {
            "prediction": "",
            "verdict": "verdict",
            "difference": "difference",
            "low": "95% from",
            "high": "to",
            "p_value": "p",
        }
        verdicts |= {"statement": "what was asked", "reason": "why not"}
        show_table("Predictions", (row for row in found.rows if "prediction" in row), verdicts)
        errors.print(f"wrote {out / REPORT_NAME}", highlight=False)
        save_json(json, found.rows)
        for name, message in found.failures.items():
            errors.print(f"[bold red]cell {name} failed:[/] {message}", soft_wrap=True, highlight=False)
        if found.failures:
            errors.print("The same command tries the failed cells again.")
            raise typer.Exit(EXIT_INCOMPLETE)
