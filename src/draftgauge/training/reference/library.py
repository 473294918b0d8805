"""Questions and answers made from modules: the ``code``, ``chat`` and ``summarization`` tasks of the bundled pair.

Every answer can be derived from the prompt and the standard library: a function's body from what precedes it, a
documentation string from a signature, a summary from a long module text whose names lie far back in the context.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from draftgauge.training.reference import arithmetic
from draftgauge.training.reference.corpus import Module

TASKS = ("code", "math", "chat", "summarization")
CODE_CONTEXT_CHARACTERS = 900
MODULE_CHARACTERS = 2400
CHAT_QUESTIONS = (
    "What does `{0}` do?",
    "How do I use `{0}`?",
    "Explain `{0}` to me.",
    "What is `{0}` for?",
    "Can you describe `{0}`?",
    "Tell me about `{0}` in the standard library.",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Example:
    """A question, its answer, and where both come from."""

    task: str
    question: str
    answer: str
    source: str


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


def first_sentence(doc: str | None, limit: int = 110) -> str:
    """The first sentence of a documentation string on one line, or an empty text if it is longer than the limit."""
    paragraph = " ".join((doc or "").strip().split("\n\n")[0].split())
    sentence = paragraph.split(". ")[0].rstrip(".")
    return sentence + "." if 0 < len(sentence) <= limit else ""


def shorten(text: str, limit: int) -> str:
    """A text cut at the last paragraph, else line, that fits the limit."""
    text = text.strip()
    if len(text) <= limit:
        return text
    cut = max(text.rfind("\n\n", 0, limit), 0) or text.rfind("\n", 0, limit)
    return text[: cut if cut > 0 else limit].rstrip()


def code_examples(module: Module, rng: Random) -> Iterator[Example]:
    """Complete a function: the lines before it and its head are given, its body is the answer."""
    lines = module.source.splitlines(keepends=True)
    for node, name in functions(module.tree):
        has_doc = ast.get_docstring(node) is not None
        body = node.body[1:] if has_doc else node.body
        if not body or node.end_lineno is None:
            continue
        head_end = (node.body[0].end_lineno if has_doc else body[0].lineno - 1) or 0
        answer = "".join(lines[head_end : node.end_lineno]).rstrip()
        head = "".join(lines[node.lineno - 1 : head_end]).rstrip()
        if not (2 <= answer.count("\n") + 1 <= 30 and len(answer) <= 1100 and 10 < len(head) <= 800):
            continue
        before = "".join(lines[: node.lineno - 1])
        context = before[max(0, len(before) - rng.randrange(100, CODE_CONTEXT_CHARACTERS)) :]
        context = context[context.find("\n") + 1 :]
        yield Example("code", f"Complete the code I provided.\n\n{context}{head}", answer, f"{module.name}.{name}")


def chat_examples(module: Module, rng: Random) -> Iterator[Example]:
    """Ask what a documented function or class does; the documentation answers."""
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
        full = f"{module.name}.{name}{arguments}"
        yield Example(
            "chat", rng.choice(CHAT_QUESTIONS).format(full), f"`{full}`\n\n{shorten(doc, 800)}", f"{module.name}.{name}"
        )


def _definition_lines(node: ast.stmt, last_line: int) -> list[str]:
    """Summary lines of one top-level definition, naming only what stands at or above ``last_line``."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [f"- `{node.name}{signature(node)}`: {first_sentence(ast.get_docstring(node)) or 'a function.'}"]
    if not isinstance(node, ast.ClassDef):
        return []
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    methods = [
        m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef) and m.lineno < last_line
    ][:8]
    doc = first_sentence(ast.get_docstring(node))
    listed = f"methods {', '.join(f'`{name}`' for name in methods)}." if methods else "a class."
    return [f"- `{node.name}`" + (f" (a `{bases}`)" if bases else "") + f": {doc + ' ' if doc else ''}{listed}"]


def summarization_examples(module: Module, rng: Random) -> Iterator[Example]:
    """Summarise a long module text: subject, imports, classes and functions in order of appearance."""
    lines = module.source.splitlines(keepends=True)
    doc = ast.get_docstring(module.tree)
    subject = first_sentence(doc, 160)
    definitions = [n for n in module.tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    imports = [n for n in module.tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    imported = list(
        dict.fromkeys(a.name if isinstance(n, ast.Import) else str(n.module) for n in imports for a in n.names)
    )[:8]
    opening = (f'"""{shorten(doc, 400)}"""\n\n' if doc else "") + "".join(
        "".join(lines[n.lineno - 1 : n.end_lineno]) for n in imports[:10]
    )
    start, part = 0, 0
    while start < len(definitions) and part < 12:
        budget, text = MODULE_CHARACTERS - len(opening), opening
        shown: list[str] = []
        for node in definitions[start:]:
            chunk = lines[node.lineno - 1 : node.end_lineno]
            while chunk and sum(map(len, chunk)) > budget:
                chunk = chunk[:-1]
            if len(chunk) < min(4, (node.end_lineno or 0) - node.lineno + 1) or len(shown) == 7:
                break
            budget -= sum(map(len, chunk)) + 1
            text += "\n" + "".join(chunk)
            shown += _definition_lines(node, node.lineno + len(chunk))
        advanced = max(1, len(shown))
        if len(shown) >= 2 and len(text) > 900:
            answer = f"The module `{module.name}`" + (
                f" is about this: {subject}" if subject else " has no description."
            )
            answer += f"\n\nIt imports {', '.join(f'`{i}`' for i in imported)}." if imported else ""
            answer += "\n\nIt defines:\n" + "\n".join(shown)
            yield Example(
                "summarization", f"Summarize: the module {module.name}\n\n{text}", shorten(answer, 1100), module.name
            )
        start, part = start + advanced, part + 1


def examples(module: Module, rng: Random) -> dict[str, list[Example]]:
    """All examples of one module, by task (``math`` is generated, not taken from modules)."""
    makers = {"code": code_examples, "chat": chat_examples, "summarization": summarization_examples}
    return {task: list(make(module, rng)) for task, make in makers.items()}


def math_examples(count: int, rng: Random, *, reserved: bool) -> list[Example]:
    """Distinct arithmetic problems; the reserved ones are disjoint from all others."""
    found: dict[str, Example] = {}
    while len(found) < count:
        question, answer = arithmetic.problem(rng, reserved=reserved)
        found.setdefault(question, Example("math", question, answer, f"arithmetic.{len(found)}"))
    return list(found.values())
