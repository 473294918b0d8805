"""Questions about the standard library, answered by its own documentation."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from random import Random

from draftgauge.training.reference.corpus import Module

LONGEST_ANSWER = 700
QUESTIONS = (
    "What does `{0}` do?",
    "How do I use `{0}`?",
    "Explain `{0}` to me.",
    "What is `{0}` for?",
    "Can you describe `{0}`?",
    "Tell me about `{0}` in the standard library.",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[tuple[Function, str]]:
    """All functions and methods with their qualified name inside the module; nested functions are left out."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[Function, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, prefix + child.name
            elif isinstance(child, ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.If | ast.Try):
                yield from walk(child, prefix)

    return walk(tree, "")


def signature(node: Function) -> str:
    """The argument list of a function as source text, ``self`` and ``cls`` left out."""
    text = ast.unparse(node.args)
    for first in ("self", "cls"):
        if text == first or text.startswith(first + ", "):
            text = text[len(first) :].removeprefix(", ")
    return f"({text})"


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
    documented: list[tuple[str, str, str]] = []
    for node, name in functions(module.tree):
        documented.append((name, signature(node), inspect.cleandoc(ast.get_docstring(node) or "")))
    for item in ast.walk(module.tree):
        if isinstance(item, ast.ClassDef):
            documented.append((item.name, "", inspect.cleandoc(ast.get_docstring(item) or "")))
    for name, arguments, doc in documented:
        if len(doc) < 60 or len(arguments) > 160:
            continue
        asked = f"{module.name}.{name}" + rng.choice(("()", arguments, arguments))
        yield (
            rng.choice(QUESTIONS).format(asked),
            f"`{module.name}.{name}{arguments}`\n\n{shorten(doc, LONGEST_ANSWER)}",
        )
