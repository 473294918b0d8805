"""``python -m recipes.reference_pair``: train the bundled pair, evaluate a pair, write the questions that ship."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from draftgauge.cli.console import EXIT_USAGE, console, errors, fail, progress, show_table
from draftgauge.core.errors import DraftgaugeError, ModelError
from draftgauge.core.files import atomic_write_text
from draftgauge.models.device import choose_device
from draftgauge.models.folder import PAIR_FOLDER, QUESTIONS_FILE
from draftgauge.requests import DraftSpec, OutputSpec
from recipes.reference_pair.card import write_card
from recipes.reference_pair.data import save_questions
from recipes.reference_pair.evaluation import evaluate_pair
from recipes.reference_pair.recipe import Recipe, train_reference

SHIPPED_QUESTIONS = 1200
CARD_DEPTH = 8
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the three commands; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        args.command(args)
    except DraftgaugeError as error:
        fail(str(error))
        return EXIT_USAGE
    return 0


def train(args: argparse.Namespace) -> None:
    """Train the pair, or a smaller relative of it, into ``args.out``."""
    if args.scale <= 0:
        raise DraftgaugeError(f"--scale must be above 0, not {args.scale:g}")
    recipe = Recipe(seed=args.seed)
    if args.scale != 1:
        recipe = recipe.scaled(args.scale)
    if args.start is not None and not (args.start / "target" / "config.json").is_file():
        raise ModelError(f"there is no pair to go on training in {args.start}: target/config.json is missing")
    if args.drafts_only:
        if args.start is None:
            raise DraftgaugeError("training only the drafts needs a trained target: name its pair with --start FOLDER")
        recipe = replace(recipe, target_tokens=0)
    work = args.work or args.out / "work"
    train_reference(args.out, work, recipe, choose_device(args.device), _report, args.start)
    console.print(f"trained pair in {args.out}; next: python -m recipes.reference_pair evaluate --folder {args.out}")


def evaluate(args: argparse.Namespace) -> None:
    """Measure a pair on its held-out prompts."""
    if args.write_card and args.gamma_max < CARD_DEPTH:
        raise DraftgaugeError(
            f"the card shows acceptance up to depth {CARD_DEPTH}: with --write-card give --gamma-max {CARD_DEPTH}"
        )
    output, drafts = OutputSpec(max_new_tokens=args.max_new_tokens), DraftSpec(gamma_max=args.gamma_max)
    with progress() as advance:
        rows = evaluate_pair(args.folder, args.split, output, drafts, advance)
    show_table("The target's greedy answers", [row for row in rows if "right" in row], TARGET_COLUMNS)
    show_table("The drafts", [row for row in rows if "mean_accepted" in row], DRAFT_COLUMNS)
    show_table("The target's residual stream", [row for row in rows if "layer" in row], LAYER_COLUMNS)
    if args.json is not None:
        atomic_write_text(args.json, json.dumps({"rows": rows}, indent=1) + "\n")
    if args.write_card:
        write_card(args.folder, rows)


def questions(args: argparse.Namespace) -> None:
    """Write the questions that the target answers for drafters that read it."""
    save_questions(args.out, args.count)


def _report(stage: str, row: dict[str, float]) -> None:
    """Print the line of a stage, or of a row of its log."""
    if "loss" in row:
        said = (
            f"{stage}: step {row['step']:.0f} of {row['steps']:.0f}, loss {row['loss']:.3f} nats, "
            f"{row['tokens_per_second']:,.0f} tokens/s, {row['seconds_left'] / 60:.0f} min left"
        )
    else:
        said = f"{stage}: {row['step']:.0f} of {row['steps']:.0f}" if row else f"{stage} ..."
    errors.print(said, highlight=False, soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m recipes.reference_pair", description=__doc__)
    commands = parser.add_subparsers(required=True)

    add = commands.add_parser("train", help="train target and drafts; nothing is downloaded").add_argument
    add("--out", type=Path, required=True, help="folder for the trained pair, its prompts and its card")
    add("--work", type=Path, help="folder for checkpoints; OUT/work if left out. Run again to resume")
    add("--scale", type=float, default=1.0, help="times the tokens of the bundled pair's training")
    add("--start", type=Path, help="folder of a pair of the same shapes to continue training")
    add("--drafts-only", action="store_true", help="take the target of START as it is")
    add("--seed", type=int, default=0)
    add("--device", help="a GPU if there is one")
    commands.choices["train"].set_defaults(command=train)

    add = commands.add_parser("evaluate", help="right answers, repetition, perplexity, acceptance").add_argument
    add("--folder", type=Path, default=PAIR_FOLDER, help="a trained pair; the bundled one if left out")
    add("--split", choices=("train", "validation", "test"), default="test")
    add("--max-new-tokens", type=int, default=OutputSpec().max_new_tokens)
    add("--gamma-max", type=int, default=DraftSpec().gamma_max)
    add("--json", type=Path, help="a file for the rows")
    add("--write-card", action="store_true", help="write the figures into the pair's card")
    commands.choices["evaluate"].set_defaults(command=evaluate)

    add = commands.add_parser("questions", help="write the questions that ship with the pair").add_argument
    add("--out", type=Path, default=QUESTIONS_FILE)
    add("--count", type=int, default=SHIPPED_QUESTIONS)
    commands.choices["questions"].set_defaults(command=questions)
    return parser


if __name__ == "__main__":
    sys.exit(main())
