"""What a module of Python source says of itself: its documentation, and the names and arguments of its functions."""

from __future__ import annotations

import ast
import gc
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_HOLDERS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes that are statements or hold some."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Documented:
    """A documented function, method or class.

    Attributes:
        name: inside the module, that of a method with its class.
        arguments: as source text in brackets, ``self`` and ``cls`` left out; empty for a class.
        text: its documentation.
    """

    name: str
    arguments: str
    text: str


@dataclass(frozen=True)
class Module:
    """A module; its syntax tree, which is many times as large, is not kept.

    Attributes:
        name: with dots.
        source: its text.
        documentation: every documentation string in it, its own among them.
        functions: plain names of all functions and methods, nested functions left out.
        documented: the documented functions and methods, then the classes.
    """

    name: str
    source: str
    documentation: tuple[str, ...]
    functions: tuple[str, ...]
    documented: tuple[Documented, ...]


def read_module(name: str, source: str) -> Module:
    """Read a module's source.

    Raises:
        SyntaxError, ValueError: if it is no Python of this version.
    """
    tree = parse(source)
    functions = list(_functions(tree, ""))
    documented = [
        Documented(qualified, _arguments(node), text)
        for node, qualified in functions
        if (text := ast.get_docstring(node))
    ]
    texts = list(_documentation(tree))
    classes = [Documented(node.name, "", text) for node, text in texts if isinstance(node, ast.ClassDef)]
    names = tuple(node.name for node, _ in functions)
    return Module(name, source, tuple(text for _, text in texts), names, (*documented, *classes))


def parse(source: str) -> ast.Module:
    """The syntax tree of a source text, without the warnings that old code gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


@contextmanager
def collection_paused() -> Iterator[None]:
    """Leave the search for reference cycles out, which takes most of the time of parsing; syntax trees have none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def documentation_strings(tree: ast.Module) -> Iterator[str]:
    """The documentation strings of a module and of all functions and classes in it."""
    return (text for _, text in _documentation(tree))


def _documentation(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Modules, functions and classes with their documentation strings, in the order of :func:`ast.walk`."""
    for node in statements(tree):
        if isinstance(node, Function | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
            yield node, text


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """What :func:`ast.walk` yields, in its order, without expressions, which are most of it and hold no statements."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLDERS))
        yield node


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[Function, str]]:
    """All functions and methods with their qualified name inside the module; nested functions are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, prefix + child.name
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _functions(child, prefix)


def _arguments(node: Function) -> str:
    text = ast.unparse(node.args)
    for first in ("self", "cls"):
        if text == first or text.startswith(first + ", "):
            text = text[len(first) :].removeprefix(", ")
    return f"({text})"
