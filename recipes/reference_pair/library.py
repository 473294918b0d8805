"""Questions about the standard library, answered by its own documentation."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from random import Random

from recipes.reference_pair.modules import Module

LONGEST_ANSWER = 700
QUESTIONS = (
    "What does `{0}` do?",
    "How do I use `{0}`?",
    "Explain `{0}` to me.",
    "What is `{0}` for?",
    "Can you describe `{0}`?",
    "Tell me about `{0}` in the standard library.",
)


def shorten(text: str, limit: int) -> str:
    """A text cut at the last paragraph, else line, that fits the limit."""
    text = text.strip()
    if len(text) <= limit:
        return text
    cut = max(text.rfind("\n\n", 0, limit), 0) or text.rfind("\n", 0, limit)
    return text[: cut if cut > 0 else limit].rstrip()


def explanations(module: Module, rng: Random) -> Iterator[tuple[str, str]]:
    """Questions what a documented function or class does, answered by its signature and documentation."""
    if module.name.startswith("test."):
        return
    for item in module.documented:
        text = inspect.cleandoc(item.text)
        if len(text) < 60 or len(item.arguments) > 160:
            continue
        asked = f"{module.name}.{item.name}" + rng.choice(("()", item.arguments, item.arguments))
        yield (
            rng.choice(QUESTIONS).format(asked),
            f"`{module.name}.{item.name}{item.arguments}`\n\n{shorten(text, LONGEST_ANSWER)}",
        )
