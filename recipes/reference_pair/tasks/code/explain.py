"""Words beside the code of an answer: comments at its steps, and a sentence that says how it works."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from recipes.reference_pair.tasks.code.maps import IDENTITY
from recipes.reference_pair.tasks.code.spec import fill
from recipes.reference_pair.tasks.code.text import Wordings

LOOPS = ("The loop goes through", "The loop takes", "It walks over", "A loop visits", "It looks at")
OTHERS = ("The function takes", "It takes", "The code selects", "It picks", "The function goes over")
SUBJECTS = ("The function", "It", "The code")
CHECKS = {
    "any": "checks",
    "all": "checks",
    "none": "checks",
    "streak": "measures",
    "mapping": "builds",
    "groups": "builds",
    "partition": "builds",
}
WALKS = ("Go through {p}.", "Loop over {p}.", "Take one {noun} after another.", "Visit every {noun}.")
KEEPS = ("Only {nouns} that {plural} count.", "Use this {noun} only if it {singular}.", "Here the {noun} {singular}.")
SKIPS = ("Skip the other {nouns}.", "Leave out every other {noun}.")
SEEN = ("Leave out what came before.", "This one came before.", "Skip repeats.")
STOPPING = ("Stop at {stop}.", "The rest is left out.")
LASTS = ("That is the result.", "Give it back.", "All done.", "Hand back the result.")


def third(order: str) -> str:
    """An order as what somebody does: "add them up", "adds them up"."""
    verb, _, rest = order.partition(" ")
    if verb.endswith("y") and verb[-2] not in "aeiou":
        verb = verb[:-1] + "ies"
    else:
        verb += "es" if verb.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{verb} {rest}"


def upper_first(text: str) -> str:
    """The text with its first letter in upper case and the others as they are."""
    return text[:1].upper() + text[1:]


def explain(rng: Random, wordings: Wordings, lines: Sequence[str]) -> str:
    """One sentence on what the lines of a body do."""
    spec = wordings.spec
    values = wordings.values()
    if not spec.reduce.do:
        return f"{rng.choice(SUBJECTS)} {CHECKS[spec.reduce.key]} {fill(spec.reduce.of[0], values)}."
    ending = third(wordings.order())
    if spec.twist in ("unchanged", "zero"):
        text = "{subject} puts {its} in place of every {noun} that {singular} and {ending}."
        return fill(text, {**values, "subject": rng.choice(SUBJECTS), "ending": ending})
    openings = LOOPS if any(line.startswith("for ") for line in lines) else OTHERS
    middle = f", {third(wordings.map_order())}" if spec.map is not IDENTITY else ""
    opening = rng.choice([one for one in openings if not (one.endswith(" takes") and " takes " in middle + ending)])
    until = f" before {spec.stop[2]}" if spec.stop else ""
    return f"{opening} {wordings.chosen}{until}{middle} and {ending}."


def comment(rng: Random, wordings: Wordings, lines: Sequence[str]) -> list[str]:
    """The lines of a body with comments before its steps, each said once."""
    values = wordings.values()
    result: list[str] = []
    said: set[str] = set()
    for index, line in enumerate(lines):
        following = lines[index + 1].strip() if index + 1 < len(lines) else ""
        kind, text = _remark(rng, wordings, line, following, index == len(lines) - 1)
        if text and kind not in said:
            said.add(kind)
            indent = line[: len(line) - len(line.lstrip())]
            result.append(f"{indent}# {upper_first(fill(text, values))}")
        result.append(line)
    return result


def _remark(rng: Random, wordings: Wordings, line: str, following: str, last: bool) -> tuple[str, str]:
    """The kind and text of a comment for a line, empty where it needs none."""
    text = line.strip()
    if text.startswith("for "):
        return "walk", rng.choice(WALKS)
    if text.startswith("if ") and following == "break":
        return "stop", rng.choice(STOPPING)
    if text.startswith("if ") and text.endswith(" in seen:"):
        return "seen", rng.choice(SEEN)
    if text.startswith("if ") and following == "continue":
        return "skip", rng.choice(SKIPS)
    if (
        text.startswith("if ")
        and wordings.spec.filter
        and wordings.spec.reduce.key not in ("all",)
        and _plain(wordings)
    ):
        return "keep", rng.choice(KEEPS)
    if " for " in text:
        return "all", wordings.chosen + "."
    if last:
        return "last", (wordings.order() + ".") if wordings.spec.reduce.do and rng.random() < 0.7 else rng.choice(LASTS)
    return "", ""


def _plain(wordings: Wordings) -> bool:
    """Whether the condition is about the loop's own elements."""
    return wordings.spec.source.key not in ("keys", "names", "indexes")
