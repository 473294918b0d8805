"""Makes docs/results/trained-smollm2.json: drafters of SmolLM2-135M-Instruct, trained token by token and block-wise,
ranked beside prompt lookup and decoded live.

    python benchmarks/trained_real.py MODELS/smollm2-135m --prompts FOLDER --out smollm2

They learn from the model's own answers to prompts that every Python installation has: functions of the standard
library and topics of the language's documentation, and sums in words. They are judged on the test prompts of
``real_pair.py``, of which FOLDER has the files. Hours on two cores; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from common import RESULTS, save, show_progress
from real_pair import drawn_prompts

from draftgauge.api.rank import rank
from draftgauge.api.replay import replay
from draftgauge.api.train import train
from draftgauge.core.prompts import TEST
from draftgauge.fitting.logistic import judged_tokens
from draftgauge.replaying.rows import draft_caps
from draftgauge.statistics.bootstrap import columns
from draftgauge.statistics.crossed import Counts, difference, interval, mean_accepted
from draftgauge.traces.reader import read_trace

SEED, PROMPTS, QUESTIONS = 0, 1000, 700
SHORTEST, LONGEST = 200, 450  # characters of a quotation
DRAFTERS = {
    "hidden-ttt": {"reuse": "hidden"},
    "kv-ttt": {"reuse": "kv"},
    "hybrid-ttt": {"reuse": "hybrid"},
    "hidden-block": {"reuse": "hidden", "recipe": "block", "dflash": True},
    "control-block": {"reuse": "control", "recipe": "block"},
    "hidden-block-markov": {"reuse": "hidden", "recipe": "block", "markov_rank": 64, "dflash": False},
    "kv-block-markov": {"reuse": "kv", "recipe": "block", "markov_rank": 64},
    "hidden-ttt-1": {"reuse": "hidden", "seed": 1},
    "hybrid-ttt-1": {"reuse": "hybrid", "seed": 1},
}
TRAINING = {
    "questions": QUESTIONS,
    "new_tokens": 96,
    "draft_vocabulary": 4096,
    "depths": 5,
    "length": 360,
    "batch": 4,
    "steps": 200,
    "checkpoint_every": 50,
    "log_every": 10,
}
KEPT = ("parameters", "steps", "tokens", "seconds", "loss")
RULE = "cumulative-confidence"
KEPT_ALONE = ("policy", "prompts", "ratio_to_plain", "ratio_to_plain_low", "ratio_to_plain_high", "distinct_4grams")
THINGS = ("apples", "books", "tickets", "stamps", "bottles", "pencils", "stones", "cards", "chairs", "letters")
PEOPLE = ("Ada", "Bela", "Carla", "Deniz", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")


def main() -> None:
    """Train what is missing, and rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of the four prompt files")
    parser.add_argument("--out", type=Path, required=True, help="folder for answers, drafters and runs")
    parser.add_argument("--per-task", type=int, default=8, help="prompts of each task to judge on")
    parser.add_argument("--live", type=int, default=8, help="of them, prompts to decode live")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    prompts, out, runs = args.out / "prompts.jsonl", args.out / "drafters", args.out / "rank"
    if not prompts.exists():
        write_prompts(prompts)
    shared = {"prompts": prompts, "answers": args.out / "answers.jsonl", "cache": args.out / "features"}
    trained = []
    for name, options in DRAFTERS.items():
        (row,) = train(target=args.target, out=out / name, **shared, **TRAINING, **options, progress=show_progress)
        trained.append({"trained": name} | {key: row[key] for key in KEPT})
    ranked = rank(
        drafters=(*(str(out / name) for name in DRAFTERS), "lookup"),
        target=args.target,
        out=runs,
        prompts=drawn_prompts(args.prompts, args.out / "judged-on.jsonl"),
        split=TEST,
        per_task=args.per_task,
        max_new_tokens=96,
        gamma_max=TRAINING["depths"],
        cost_seconds=30,
        measure=True,
        live=args.live,
        progress=show_progress,
    )
    save(RESULTS, "trained-smollm2.json", [*trained, *ranked, *alone(runs), both_over_one(runs)])


def alone(runs: Path) -> list[dict[str, Any]]:
    """Every drafter without a second source, by a rule of confidence, at the costs of its own run."""
    rows = []
    for run in sorted(path.parent for path in runs.glob("*/manifest.json")):
        (row,) = (each for each in replay(run, policies=(RULE,)) if (each["policy"], each["task"]) == (RULE, "all"))
        rows.append({"alone": run.name.removeprefix("drafters-")} | {key: row[key] for key in KEPT_ALONE})
    return rows


def both_over_one(runs: Path) -> dict[str, Any]:
    """What reading both gains over hidden states alone, drafting from every position; over prompts and two seeds."""
    both, one = (
        Counts.stack([counts(runs / f"drafters-{design}-ttt{seed}") for seed in ("", "-1")])
        for design in ("hybrid", "hidden")
    )
    figures = {"seeds": 2, "prompts": both.reached.shape[1]}
    for name, of in (("hybrid", both), ("hidden", one)):
        figures |= {name: interval(of, mean_accepted).estimate}
    return {"difference": "hybrid-ttt"} | figures | columns("tokens_per_step", difference(both, one, mean_accepted))


def counts(run: Path) -> Counts:
    trace = read_trace(run)
    depth, caps = np.arange(1, trace.gamma_max + 1), draft_caps(trace)
    sums = [
        np.add.reduceat(of.astype(np.int64), trace.offsets[:-1])
        for of in (judged_tokens(trace), depth <= np.minimum(trace.accepted, caps)[:, None])
    ]
    return Counts.of(*sums)


def write_prompts(path: Path) -> None:
    """A quarter each: write a function, explain one, answer a question about the language, work out a sum."""
    rng, count = random.Random(SEED), PROMPTS // 4
    found = list(functions(Path(sysconfig.get_path("stdlib"))))
    documented = [(name, document) for name, document, _ in found if 60 < len(document) < LONGEST]
    sources = [source for *_, source in found if SHORTEST < len(source) < LONGEST]
    parts = [(name, part) for name, text in topics.items() for part in text.split("\n\n")]
    passages = [(name, part) for name, part in parts if SHORTEST < len(part) < LONGEST]
    texts = {
        "write": [f"Write a Python function `{name}`. {document}" for name, document in rng.sample(documented, count)],
        "explain": [f"Explain what this function does.\n\n```python\n{one}\n```" for one in rng.sample(sources, count)],
        "topic": [question(rng, *one) for one in rng.sample(passages, count)],
        "sum": [word_problem(rng) for _ in range(count)],
    }
    rows = [[{"id": f"{task}-{n}", "task": task, "prompt": one} for n, one in enumerate(texts[task])] for task in texts]
    lines = [json.dumps(row) + "\n" for row in itertools.chain.from_iterable(zip(*rows, strict=True))]
    path.write_text("".join(lines), encoding="utf-8")


def functions(library: Path) -> Iterator[tuple[str, str, str]]:
    """Name, docstring and source of the library's functions."""
    for path in sorted(library.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield node.name, ast.get_docstring(node) or "", ast.get_source_segment(text, node) or ""


def question(rng: random.Random, topic: str, passage: str) -> str:
    asked = (
        f"Summarize this passage in two sentences.\n\n{passage}",
        f"Give an example in Python for what this passage says.\n\n{passage}",
        f"In a few sentences, what should a beginner know about '{topic.lower()}' in Python?",
    )
    return rng.choice(asked)


def word_problem(rng: random.Random) -> str:
    one, two = rng.sample(PEOPLE, 2)
    thing, other = rng.sample(THINGS, 2)
    a, b, c, price = rng.randint(12, 90), rng.randint(2, 11), rng.randint(2, 9), rng.randint(2, 25)
    asked = (
        f"{one} has {a} {thing} and gives {b} of them to {two}. How many {thing} are left if {one} then buys {c} more?",
        f"A box holds {b * c} {thing}. How many boxes does {one} need for {a * b * c} {thing}?",
        f"{one} sells {a} {thing} for {price} dollars each and spends {price * b} dollars on {other}. What is left?",
        f"{one} reads {b} pages a day for {c} weeks, {two} reads {a} pages more. How many pages did {two} read?",
        f"{thing.capitalize()} cost {price} dollars, {other} cost {c} more. {two} buys {b} of each. What is paid?",
    )
    return rng.choice(asked)


if __name__ == "__main__":
    main()
