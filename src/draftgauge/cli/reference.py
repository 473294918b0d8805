"""``draftgauge reference``: the bundled pair, its card, and how to train it again."""

from __future__ import annotations

from typing import Any

from draftgauge.api.requests import ReferenceEvaluateRequest, ReferenceTrainRequest
from draftgauge.cli.console import console, errors, progress, show_table

TARGET_COLUMNS = {
    "task": "task",
    "right": "right",
    "distinct_4grams": "distinct 4-grams",
    "copied_4grams": "copied from the prompt",
    "acceptance_depth_1": "draft accepted at 1",
    "perplexity": "perplexity",
}
DRAFT_COLUMNS = {
    "model": "draft",
    "task": "task",
    "perplexity": "perplexity",
    "acceptance_depth_1": "accepted at 1",
    "acceptance_depth_4": "at 4",
    "acceptance_depth_8": "at 8",
    "mean_accepted": "mean of 16",
}
LAYER_COLUMNS = {"layer": "layer", "rms": "RMS of states", "largest": "largest of a position"}


def card() -> None:
    """Show the model card of the bundled pair."""
    from rich.markdown import Markdown

    from draftgauge.models.reference import PAIR_FOLDER

    console.print(Markdown((PAIR_FOLDER / "README.md").read_text(encoding="utf-8")))


def train(request: ReferenceTrainRequest) -> None:
    from draftgauge.api.reference import train_pair

    folder = train_pair(request, report=_report)
    console.print(f"trained pair in {folder}; next: draftgauge reference evaluate --folder {folder}", highlight=False)


def evaluate(request: ReferenceEvaluateRequest) -> list[dict[str, Any]]:
    from draftgauge.api.reference import evaluate_pair

    with progress() as advance:
        rows = evaluate_pair(request, progress=advance)
    show_table("The target's greedy answers", [row for row in rows if "right" in row], TARGET_COLUMNS)
    show_table("The drafts", [row for row in rows if "mean_accepted" in row], DRAFT_COLUMNS)
    show_table("The target's residual stream", [row for row in rows if "layer" in row], LAYER_COLUMNS)
    return rows


def _report(stage: str, row: dict[str, float]) -> None:
    """The line of a stage, or of a row of its log."""
    if "loss" in row:
        said = (
            f"{stage}: step {row['step']:.0f} of {row['steps']:.0f}, loss {row['loss']:.3f} nats, "
            f"{row['tokens_per_second']:,.0f} tokens/s, {row['seconds_left'] / 60:.0f} min left"
        )
    else:
        said = f"{stage}: {row['step']:.0f} of {row['steps']:.0f}" if row else f"{stage} ..."
    errors.print(said, highlight=False, soft_wrap=True)
