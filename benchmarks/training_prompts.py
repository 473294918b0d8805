"""Writes prompts to train drafters of any chat model on: from the standard library and the packages of draftgauge.

    python benchmarks/training_prompts.py train.jsonl --count 20800 --judge FOLDER

A quarter each: write a function from its docstring, explain one, answer a question about a text, work out a sum in
words. How many there are follows from the versions that are installed. Of the four prompt files in FOLDER, the prompts
of ``real_pair.py`` are written to judged-on.jsonl beside.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from real_pair import drawn_prompts

SEED = 1
PACKAGES = ("torch", "transformers", "numpy", "scipy")
SHORTEST, LONGEST = 200, 450  # characters of a quotation
SHORTEST_DOCUMENT, LONG_DOCUMENTS = 60, (300, 1200)
THINGS = ("apples", "books", "tickets", "stamps", "bottles", "pencils", "stones", "cards", "chairs", "letters")
PEOPLE = ("Ada", "Bela", "Carla", "Deniz", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")
ASKED = (
    "Summarize this passage in two sentences.\n\n{text}",
    "Give an example in Python for what this passage says.\n\n{text}",
    "Rewrite this for a beginner.\n\n{text}",
    "Ask three questions that this text answers.\n\n{text}",
    "Explain in your own words what `{name}` is for.",
)


def main() -> None:
    """Write the prompts, mixed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=20_800)
    parser.add_argument("--judge", type=Path, help="folder of the four prompt files to judge on")
    args = parser.parse_args()
    if args.judge is not None:
        drawn_prompts(args.judge, args.out.with_name("judged-on.jsonl"))
    warnings.simplefilter("ignore")  # of source that is parsed
    rng, count = random.Random(SEED), args.count // 4
    found = list(functions())
    documents = {text: name for name, text, _ in found if SHORTEST_DOCUMENT < len(text) < LONGEST and name[:2] != "__"}
    longer = {text: name for name, text, _ in found if LONG_DOCUMENTS[0] < len(text) < LONG_DOCUMENTS[1]}
    sources = list(dict.fromkeys(source for *_, source in found if SHORTEST < len(source) < LONGEST))
    parts = [(name, part) for name, text in topics.items() for part in text.split("\n\n")]
    passages = [question(rng, name, part) for name, part in parts if SHORTEST < len(part) < LONGEST]
    passages += [rng.choice(ASKED).format(name=name, text=text) for text, name in longer.items()]
    texts = {
        "write": [f"Write a Python function `{name}`. {text}" for text, name in documents.items()],
        "explain": [f"Explain what this function does.\n\n```python\n{source}\n```" for source in sources],
        "topic": passages,
        "sum": list(dict.fromkeys(word_problem(rng) for _ in range(2 * count))),
    }
    rows = [
        {"id": f"{task}-{number}", "task": task, "prompt": text}
        for task, all_of_it in texts.items()
        for number, text in enumerate(rng.sample(all_of_it, min(count, len(all_of_it))))
    ]
    rng.shuffle(rows)
    args.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def functions() -> Iterator[tuple[str, str, str]]:
    """Name, docstring and source of the functions of the standard library and of the packages."""
    paths = [path for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")) if "-packages" not in str(path)]
    for package in PACKAGES:
        paths += sorted(Path(sysconfig.get_path("purelib"), package).rglob("*.py"))
    for path in paths:
        if {"test", "tests", "testing"} & set(path.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):  # files that are made to fail
            continue
        lines = text.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                yield node.name, ast.get_docstring(node) or "", source


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
