"""Parts of a code spec: where its elements come from, which are kept, and what is made of each.

Every part brings its wordings, its code and its meaning. A spec puts parts together, and a reserved spec is a
combination that no training text has, of parts that training texts have thousands of times. Placeholders of constants:
``{k}``, ``{j}`` and ``{c}`` belong to filters, ``{m}``, ``{d}`` and ``{e}`` to maps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Constants = Mapping[str, Any]


@dataclass(frozen=True)
class Wording:
    """How a condition reads before a noun, after it, and as a predicate of one or of many."""

    before: str
    after: str
    singular: str
    plural: str


def adjective(text: str) -> Wording:
    """A condition that may stand before its noun."""
    return Wording(text, "", f"is {text}", f"are {text}")


def phrase(text: str) -> Wording:
    """A condition that follows its noun, with or without "that are"."""
    return Wording("", text, f"is {text}", f"are {text}")


def clause(singular: str, plural: str) -> Wording:
    """A condition with a verb of its own."""
    return Wording("", "", singular, plural)


@dataclass(frozen=True)
class Filter:
    """Which elements are kept; ``keep`` and ``drop`` are code for the condition and its opposite."""

    key: str
    wordings: tuple[Wording, ...]
    keep: tuple[str, ...]
    drop: tuple[str, ...]
    test: Callable[[Any, Constants], bool]
    constants: Mapping[str, str]
    natural: bool = False


@dataclass(frozen=True)
class Map:
    """What is made of an element: ``of`` wraps the elements' name, ``do`` is an order, ``its`` names it of one."""

    key: str
    of: tuple[str, ...]
    do: tuple[str, ...]
    its: str
    code: tuple[str, ...]
    apply: Callable[[Any, Constants], Any]
    result: str
    names: tuple[str, ...]
    constants: Mapping[str, str]
    natural: bool = False


@dataclass(frozen=True)
class Source:
    """Where elements come from: ``tested`` is the type a filter sees, ``given`` the type a map gets."""

    key: str
    annotation: str
    tested: str
    given: str
    noun: str
    places: tuple[str, ...]
    iterable: tuple[str, ...]
    variables: tuple[str, ...]
    sliced: bool = False


SOURCES = (
    Source(
        "ints", "list[int]", "int", "int", "number", ("in {p}", "of {p}", "from {p}"), ("{p}",),
        ("number", "n", "value", "num"), True,
    ),
    Source(
        "words", "list[str]", "word", "word", "word", ("in {p}", "of {p}", "from {p}"), ("{p}",),
        ("word", "w", "item", "entry"), True,
    ),
    Source(
        "split", "str", "word", "word", "word",
        ("in the text {p}", "of the sentence {p}"), ("{p}.split()",), ("word", "w", "part", "token"), True,
    ),
    Source(
        "chars", "str", "char", "char", "character",
        ("in {p}", "of the string {p}"), ("{p}",), ("char", "c", "ch", "character"), True,
    ),
    Source(
        "values", "dict[str, int]", "int", "int", "value",
        ("of the dict {p}", "in {p}"), ("{p}.values()",), ("value", "v", "amount", "number"),
    ),
    Source(
        "range", "int", "int", "int", "number",
        ("from 1 to {p}", "between 1 and {p} inclusive"), ("range(1, {p} + 1)",), ("i", "number", "n", "candidate"),
    ),
    Source(
        "digits", "int", "int", "int", "digit", ("of {p}", "in {p}"), ("map(int, str({p}))",),
        ("digit", "d", "figure"),
    ),
    Source(
        "keys", "dict[str, int]", "int", "word", "key", ("of {p}", "in {p}"), ("{p}.items()",),
        ("value", "amount", "v"),
    ),
    Source(
        "names", "list[tuple[str, int]]", "int", "word", "name",
        ("in the pairs {p}", "of the (name, number) pairs {p}"), ("{p}",), ("number", "value", "points"), True,
    ),
    Source(
        "indexes", "list[int]", "int", "int", "number", ("in {p}", "of {p}"), ("enumerate({p})",),
        ("number", "value", "n"),
    ),
    Source(
        "pairs", "list[int]", "pair", "pair", "pair",
        ("from zip({p}, {q})", "of zip({p}, {q})"), ("zip({p}, {q})",), ("x y", "a b", "left right", "first second"),
    ),
)  # fmt: skip
