"""``draftgauge reference``: the bundled pair, its card, and how to train it again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from draftgauge.cli import options as o
from draftgauge.cli.console import console, errors, friendly_errors, progress, save_json, show_table

app = typer.Typer(help="The bundled pair: show its card, train it again, evaluate it.", no_args_is_help=True)


@app.command("card")
def card() -> None:
    """Show the model card of the bundled pair."""
    from draftgauge.models.reference import PAIR_FOLDER

    console.print(Markdown((PAIR_FOLDER / "README.md").read_text(encoding="utf-8")))


@app.command("train")
def train(
    out: Annotated[Path, typer.Option(help="Folder for the trained pair, its prompts and its card.")],
    work: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints; OUT/work if left out. Run again to resume.")
    ] = None,
    scale: Annotated[float, typer.Option(help="Times the tokens of the bundled pair's training.")] = 1.0,
    device: o.Device = None,
    seed: o.Seed = 0,
) -> None:
    """Train target and drafts from the standard library's text and generated arithmetic; nothing is downloaded."""
    from draftgauge.api.reference import train_pair

    def report(stage: str, row: dict[str, float]) -> None:
        if "loss" in row:
            errors.print(
                f"{stage}: step {row['step']:.0f} of {row['steps']:.0f}, loss {row['loss']:.3f} nats, "
                f"{row['tokens_per_second']:,.0f} tokens/s, {row['seconds_left'] / 60:.0f} min left",
                highlight=False,
            )
        else:
            errors.print(
                f"{stage}: {row['step']:.0f} of {row['steps']:.0f}" if row else f"{stage} ...", highlight=False
            )

    with friendly_errors("Run the same command again to go on from the last checkpoint."):
        folder = train_pair(out, work or out / "work", scale=scale, device=device, seed=seed, report=report)
        console.print(
            f"trained pair in {folder}; next: draftgauge reference evaluate --folder {folder}", highlight=False
        )


@app.command("evaluate")
def evaluate(
    folder: Annotated[Path | None, typer.Option(help="A trained pair; the bundled one if left out.")] = None,
    write_card: Annotated[bool, typer.Option("--write-card", help="Write the figures into the pair's card.")] = False,
    max_new_tokens: o.MaxNewTokens = 128,
    json: o.Json = None,
) -> None:
    """Measure perplexity, repetition of greedy output and acceptance by depth on the held-out test prompts."""
    from draftgauge.api.reference import evaluate_pair

    with friendly_errors():
        with progress() as advance:
            rows = evaluate_pair(folder, max_new_tokens=max_new_tokens, write=write_card, progress=advance)
        columns = {
            "model": "model",
            "task": "task",
            "parameters": "parameters",
            "perplexity": "perplexity",
            "distinct_4grams": "distinct 4-grams",
            "accepted_at_1": "accepted at 1",
            "accepted_at_4": "at 4",
            "accepted_at_8": "at 8",
            "mean_accepted": "mean of 16",
        }
        show_table("Held-out test prompts", rows, columns)
        save_json(json, rows)
