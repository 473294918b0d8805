"""What a task with known answers is: seeded examples, each with its template and what a right answer holds.

A *template* names every choice of structure and wording that made an example (but not its numbers and names). Splits
are drawn by a hash of the template, so that no prompt of one split is worded and built as any text of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

SPLITS = ("train", "validation", "test", "sealed")
TRAINING = ""
# Percentiles of the hash of a template that are kept for prompts; all others are training text.
RESERVED = {"train": range(0, 7), "validation": range(7, 12), "test": range(12, 17), "sealed": range(17, 22)}


@dataclass(frozen=True)
class Words:
    """Vocabulary taken from the standard library's texts.

    Attributes:
        nouns: countable nouns, singular, regular plural (``noun + "s"``).
        adjectives: adjectives that may stand before a noun.
        verbs: regular verbs in their base form.
        identifiers: snake_case names of functions and arguments.
    """

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]
    identifiers: tuple[str, ...]


@dataclass(frozen=True)
class Example:
    """A conversation, its answer, and what makes an answer right.

    Attributes:
        task: "code", "math", "chat" or "summarization".
        template: every structural choice behind the example, joined by "/"; decides its split.
        messages: the conversation as ``(role, content)``, ending with a question by "user".
        answer: one right answer; there are others.
        check: what the task's scorer needs, as JSON.
    """

    task: str
    template: str
    messages: tuple[tuple[str, str], ...]
    answer: str
    check: Mapping[str, Any]


Draw = Callable[[Random, Words], Example]


def percentile(text: str, salt: str = "") -> int:
    """A stable number from 0 to 99 for a text, the same on every machine."""
    return int(hashlib.sha256((salt + text).encode()).hexdigest()[:8], 16) % 100


def split_of(template: str) -> str:
    """The split of prompts that a template belongs to, or ``TRAINING``."""
    share = percentile(template, "template")
    return next((split for split, kept in RESERVED.items() if share in kept), TRAINING)


def examples(draw: Draw, rng: Random, words: Words, split: str = TRAINING) -> Iterator[Example]:
    """Endless examples of one split of a task."""
    while True:
        example = draw(rng, words)
        if split_of(example.template) == split:
            yield example
