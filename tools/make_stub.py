"""Writes ``src/draftgauge/__init__.pyi`` from the requests, so that editors complete keywords and mypy checks them.

``--check`` writes nothing, and exits with 1 if the file is not what would be written; ``make lint`` runs it.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import draftgauge
from draftgauge.core.config import settings_of
from draftgauge.requests import PairSpec

STUB = Path("src/draftgauge/__init__.pyi")
HEAD = """\
# Written by tools/make_stub.py from the requests: run it after a change to one of them.
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

"""
ALIASES = """
_Text: TypeAlias = str | PathLike[str]
_Prompts: TypeAlias = Sequence[str | Mapping[str, Any]]

__version__: str
"""
PLAIN = {"__version__", "plot"}  # exported, and neither a class nor a function
PAIR = {entry.name for entry in settings_of(PairSpec)}  # what a loaded pair has settled


def main(arguments: list[str]) -> int:
    wanted = stub()
    if "--check" in arguments:
        if STUB.read_text(encoding="utf-8") == wanted:
            return 0
        print(f"{STUB} is out of date: python tools/make_stub.py", file=sys.stderr)
        return 1
    STUB.write_text(wanted, encoding="utf-8")
    return 0


def stub() -> str:
    exported = {name: getattr(draftgauge, name) for name in draftgauge.__all__ if name not in PLAIN}
    verbs = {name: each for name, each in exported.items() if hasattr(each, "__signature__")}
    imports = [
        f"from {each.__module__} import {name} as {name}" for name, each in exported.items() if name not in verbs
    ]
    imports.append("from draftgauge.reporting import plot as plot")
    functions = "".join(written for name, verb in verbs.items() for written in definitions(name, verb))
    return HEAD + "\n".join(sorted(imports)) + "\n" + ALIASES + functions


def definitions(name: str, verb: Callable[..., Any]) -> list[str]:
    """A verb, twice where it takes a loaded pair first, as then nothing may be asked of what it has settled."""
    hints = get_type_hints(verb)
    returned = "Rows" if get_origin(hints["return"]) is list else spelled(hints["return"])
    settings = dict(inspect.signature(verb).parameters)
    loaded = settings.pop("pair", None)
    summary = (inspect.getdoc(verb) or "").partition("\n\n")[0]
    document = textwrap.indent(f'"""{summary}"""\n', "    ")
    calls = [[parameter(each, hints) for each in settings.values()]]
    if loaded is not None:
        beside = [parameter(each, hints) for each in settings.values() if each.name not in PAIR]
        calls.append([("pair: Pair", True), *beside])
    return [
        ("\n@overload" if loaded is not None else "") + definition(name, parameters, returned) + document
        for parameters in calls
    ]


def definition(name: str, parameters: list[tuple[str, bool]], returned: str) -> str:
    words = [text for text, leading in parameters if leading]
    named = [text for text, leading in parameters if not leading]
    words += ["*", *named] if named else []
    unbroken = ", ".join(word.replace(" ", "\0") for word in words)
    joined = textwrap.fill(unbroken, 115, break_long_words=False, break_on_hyphens=False)
    inner = textwrap.indent(joined.replace("\0", " "), "    ")
    return f"\ndef {name}(\n{inner},\n) -> {returned}:\n"


def parameter(each: inspect.Parameter, hints: dict[str, Any]) -> tuple[str, bool]:
    """How it is written, and whether it may be given by position."""
    own = isinstance(each.annotation, str)  # a parameter of the function, and not a setting of its request
    annotation = spelled(hints[each.name]) if own else taken(each.annotation)
    if each.name == "prompts":
        annotation = f"_Prompts | {annotation}"
    default = "" if each.default is each.empty else f" = {shown(each.default)}"
    return f"{each.name}: {annotation}{default}", each.kind is each.POSITIONAL_OR_KEYWORD


def shown(default: Any) -> str:
    return repr(default) if isinstance(default, str | int | float | tuple | None) else "..."


def taken(annotation: Any) -> str:
    """What a setting of this type may be given: paths as text, tuples as any sequence or as text with commas."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return taken(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(part for each in arguments for part in taken(each).split(" | ")))
    if origin is tuple:
        return f"_Text | Sequence[{taken(arguments[0])}]"
    return "_Text" if annotation in (str, Path) else spelled(annotation)


def spelled(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(spelled, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if annotation in (None, types.NoneType):
        return "None"
    if isinstance(annotation, list):  # the arguments of a callable
        return f"[{', '.join(map(spelled, annotation))}]"
    return annotation.__name__ + (f"[{', '.join(map(spelled, arguments))}]" if arguments else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
