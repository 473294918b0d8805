"""What makes a function of a request a verb of the Python API."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING
from functools import wraps
from typing import Any, Protocol, TypeVar, overload

from draftgauge.core.config import leading_settings, make_request, settings_of
from draftgauge.core.errors import DraftgaugeError, is_out_of_memory, missing_library
from draftgauge.core.files import cache_folder
from draftgauge.core.process import in_turn, sigterm_interrupts, watched_load
from draftgauge.core.progress import python_bars
from draftgauge.core.prompts import write_prompts
from draftgauge.core.provenance import PYTHON_CALL
from draftgauge.core.table import Rows

Result = TypeVar("Result")
_MEMORY_ADVICE = "ask for shorter texts, a smaller model, a stronger compression or another device"


class Verb(Protocol):
    @overload
    def __call__(self, function: Callable[..., list[dict[str, Any]]]) -> Callable[..., Rows]: ...
    @overload
    def __call__(self, function: Callable[..., Result]) -> Callable[..., Result]: ...


def verb(request_class: type, loaded: type | None = None) -> Verb:
    """Let a function that takes a request also take the request's settings, by position and by keyword.

    ``profile(ProfileRequest(out=Path("runs/x")))`` and ``profile(out="runs/x")`` are the same, and ``prompts`` may be a
    list of texts, or of dicts with the keys of a prompt file. The function's own further parameters are keyword-only
    (``progress``, bars if left out). A list of dicts is returned as
    :class:`~draftgauge.core.table.Rows`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function).parameters
        own = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            further = {name: keywords.pop(name) for name in own if name in keywords}
            if "progress" in own and "progress" not in further:
                further["progress"] = python_bars()
            if isinstance(keywords.get("prompts"), list | tuple):
                keywords["prompts"] = write_prompts(keywords["prompts"], cache_folder() / "prompts")
            if loaded is not None and arguments and isinstance(arguments[0], loaded):
                further["pair"], *arguments = arguments  # type: ignore[assignment]
            whole = len(arguments) == 1 and not keywords and isinstance(arguments[0], request_class)
            request = arguments[0] if whole else make_request(request_class, arguments, keywords)
            pair = further.get("pair")
            with sigterm_interrupts(), in_turn(*(() if pair is None else pair.models)), watched_load():
                given = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in keywords.items())]
                spelled = PYTHON_CALL.get("") or f"draftgauge.{function.__name__}({', '.join(given)})"
                outer = PYTHON_CALL.set(spelled)
                try:
                    result = function(request, **further)
                except ModuleNotFoundError as error:
                    raise missing_library(error.name) or error from error
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    said = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
                    raise DraftgaugeError(f"memory ran out ({said}): {_MEMORY_ADVICE}") from error
                finally:
                    PYTHON_CALL.reset(outer)
            return Rows(result) if isinstance(result, list) else result

        call.__signature__ = _signature(request_class, [parameters[name] for name in own])  # type: ignore[attr-defined]
        call.__doc__ = _documented(inspect.getdoc(function) or "", request_class)
        return call

    return decorate


def _documented(text: str, request_class: type) -> str:
    """The docstring with every setting of the request in place of ``request``."""
    settings = "".join(f"    {entry.name}: {entry.help}\n" for entry in settings_of(request_class) if not entry.hidden)
    if "\nArgs:\n" not in text:
        place = re.search(r"\n(?=(?:Returns|Raises):\n)", text)
        cut = place.start() if place else len(text)
        text = f"{text[:cut].rstrip()}\n\nArgs:\n{text[cut:]}" if place else f"{text}\n\nArgs:\n"
    head, _, rest = text.partition("\nArgs:\n")
    rest = re.sub(r"\A    (?:request|spec): .*\n?(?:        .*\n?)*", "", rest)
    return f"{head}\nArgs:\n{settings}{rest}"


def _signature(request_class: type, own: list[inspect.Parameter]) -> inspect.Signature:
    """What ``help()`` and ``__init__.pyi`` show: the settings and their defaults."""
    empty = inspect.Parameter.empty
    leading = leading_settings(request_class)
    flat = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if entry in leading else inspect.Parameter.KEYWORD_ONLY,
            default=empty if entry.default is MISSING else entry.default,
            annotation=entry.annotation,
        )
        for entry in settings_of(request_class)
        if not entry.hidden
    ]
    return inspect.Signature([*flat, *own])
