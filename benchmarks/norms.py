"""What the norms of a drafter's inputs, its start and the layers it taps are worth: one choice changed at a time.

Every arm is trained for as many steps with as many seeds, on the bundled target's answers to generated questions, and
judged by its KL on validation prompts, which no reported figure is measured on. Whatever is finished is kept in the
folder of ``--work``: the same command goes on where it was stopped. The folder of a quick study will do, whose answers
and features are then used again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import console, save, show_progress

from draftgauge.api.runs import prompt_file
from draftgauge.core.executor import EXECUTORS, execute
from draftgauge.core.files import require_writable
from draftgauge.decoding.settings import DecodingSettings
from draftgauge.drafters.reuse import target_fingerprint
from draftgauge.models.loading import end_tokens, load_tokenizer
from draftgauge.studies.kvshot.ablation import AS_IT_STANDS, ablation_jobs, ablation_rows, read_ablation
from draftgauge.studies.kvshot.cells import ANSWERS_NAME, FEATURES_NAME, VALIDATION_NAME, Ablation
from draftgauge.studies.kvshot.held_out import make_texts
from draftgauge.studies.kvshot.presets import LAPTOP
from draftgauge.training.reuse.data import answers_of, load_target
from draftgauge.training.reuse.request import TrainingSpec


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train and measure what is left, and give the rows of all that is there."""
    work = args.work.absolute()
    require_writable(work)
    request = TrainingSpec(
        target=args.target,
        prompts=args.prompts,
        questions=args.questions,
        new_tokens=args.new_tokens,
        batch=args.batch,
        compile=args.compile,
        answers=work / ANSWERS_NAME,
        features="cached",
        cache=work / FEATURES_NAME,
        threads=args.cpus,
    )
    target = load_target(request)
    tokenizer = load_tokenizer(args.target)
    settings = DecodingSettings(args.new_tokens, end_tokens=end_tokens(target, tokenizer))
    validation = prompt_file(args.validation)
    make_texts(work / VALIDATION_NAME, validation, args.per_task, target, tokenizer, settings, show_progress)
    answers_of(request, work / ANSWERS_NAME, target, show_progress)
    ablation = Ablation(tuple(args.designs), args.steps, tuple(range(args.seeds)))
    layers = target.module.config.get_text_config().num_hidden_layers
    jobs = ablation_jobs(ablation, request, work, target_fingerprint(target.module), layers)
    jobs = [job for job in jobs if not args.arms or job.arm.name in (AS_IT_STANDS, *args.arms)]
    waiting = [job for job in jobs if read_ablation(job) is None]
    console.print(f"{len(jobs) - len(waiting)} of {len(jobs)} trainings are done", highlight=False)
    ended = execute(waiting, args.executor, lambda outcome: report(outcome.job), args.cpus or 1) if waiting else []
    for outcome in ended:
        if outcome.error:
            console.print(f"{outcome.job} failed: {outcome.message}", highlight=False)
    return ablation_rows(jobs)


def report(job: str) -> None:
    """That a training has ended."""
    console.print(f"ended: {job}", highlight=False)


def main() -> None:
    """Measure and write ``norms.json``, or the file of ``--name``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder for the JSON")
    parser.add_argument(
        "--work", type=Path, default=Path("build/norms"), help="folder that goes on where it was stopped"
    )
    parser.add_argument("--target", default="reference")
    parser.add_argument("--prompts", type=Path, help="training prompts of a target that is not the bundled one")
    parser.add_argument("--validation", default="reference:validation")
    parser.add_argument("--per-task", type=int, default=4, help="validation prompts of each task")
    parser.add_argument("--designs", nargs="+", default=list(Ablation().designs))
    parser.add_argument("--arms", nargs="+", help="only these beside the design as it stands; all if left out")
    parser.add_argument("--name", default="norms.json", help="of the JSON")
    parser.add_argument("--steps", type=int, default=Ablation().steps)
    parser.add_argument("--seeds", type=int, default=len(Ablation().seeds))
    parser.add_argument("--questions", type=int, default=LAPTOP["questions"])
    parser.add_argument("--new-tokens", type=int, default=LAPTOP["new_tokens"])
    parser.add_argument("--batch", type=int, default=LAPTOP["batch"])
    parser.add_argument("--compile", action="store_true", help="compile the loss")
    parser.add_argument("--executor", choices=EXECUTORS, default="local", help="one after the other, or side by side")
    parser.add_argument("--cpus", type=int, help="of each training; all if left out")
    args, _ = parser.parse_known_args()
    rows = run(args)
    for row in rows:
        apart = f"{row['difference']:+.3f} ({row['least']:+.3f} to {row['most']:+.3f})" if "difference" in row else ""
        console.print(
            f"{'*' if row['best'] else ' '} {row['design']:7} {row['ablation']:36} {row['validation_kl']:.3f} {apart}",
            highlight=False,
            soft_wrap=True,
        )
    save(args.out, args.name, rows)


if __name__ == "__main__":
    main()
