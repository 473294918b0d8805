"""The task ``math``: word problems of several steps and plain exercises, answered by worked steps and a last line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from recipes.reference_pair.tasks.base import Example, Words
from recipes.reference_pair.tasks.math.arithmetic import steps_true
from recipes.reference_pair.tasks.math.bills import bill
from recipes.reference_pair.tasks.math.comparisons import comparison
from recipes.reference_pair.tasks.math.exercises import exercise
from recipes.reference_pair.tasks.math.stories import story

__all__ = ["draw", "score", "steps_true"]

SHARES = {story: 0.52, comparison: 0.17, bill: 0.16, exercise: 0.15}
BEFORE = (
    "Solve this problem step by step.",
    "Work this out and show the steps.",
    "Here is a problem.",
    "Please help me with this.",
)
AFTER = ("Show your steps.", "Explain how you get there.", "Give the steps and the answer.", "Think step by step.")
_NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")


def draw(rng: Random, words: Words) -> Example:
    """One problem with its worked answer."""
    kind = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    problem = kind(rng, words)
    asked = rng.random()
    if asked < 0.2:
        problem.prompt.insert(0, problem.pick(rng, "before", BEFORE))
    elif asked < 0.4:
        problem.prompt.append(problem.pick(rng, "after", AFTER))
    last = f"Answer: {problem.result}"
    if problem.unit and rng.random() < 0.5:
        last += f" {problem.unit}"
    answer = " ".join(problem.sentences) + "\n" + last
    messages = (("user", " ".join(problem.prompt)),)
    return Example("math", "/".join(problem.parts), messages, answer, {"answer": problem.result})


def score(check: Mapping[str, Any], answer: str) -> float:
    """1.0 where the last number after the word "answer", else the last number of the text, is the right one."""
    after = answer.lower().rpartition("answer")[2]
    numbers = _NUMBER.findall(after) or _NUMBER.findall(answer)
    return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(check["answer"]))
