"""What makes a function of a request a verb of the Python API."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from functools import wraps
from typing import Any, TypeVar

from draftgauge.core.errors import DraftgaugeError, is_out_of_memory
from draftgauge.core.load import watched_load
from draftgauge.core.settings import make_request, settings_of

Result = TypeVar("Result")
_MEMORY_ADVICE = "ask for shorter texts, a smaller model, a stronger compression or another device"


def verb(request_class: type, loaded: type | None = None) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Let a function that takes a request also take the request's settings, by position and by keyword.

    ``profile(ProfileRequest(out=Path("runs/x")))`` and ``profile(out="runs/x")`` are the same. The function's own
    further parameters are keyword-only (``progress``).
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        parameters = inspect.signature(function).parameters
        own = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Result:
            further = {name: keywords.pop(name) for name in own if name in keywords}
            if loaded is not None and arguments and isinstance(arguments[0], loaded):
                further["pair"], *arguments = arguments  # type: ignore[assignment]
            whole = len(arguments) == 1 and not keywords and isinstance(arguments[0], request_class)
            request = arguments[0] if whole else make_request(request_class, arguments, keywords)
            with watched_load():
                try:
                    return function(request, **further)
                except Exception as error:
                    if not is_out_of_memory(error):
                        raise
                    raise DraftgaugeError(f"memory ran out ({_first_line(error)}): {_MEMORY_ADVICE}") from error

        call.__signature__ = _signature(request_class, [parameters[name] for name in own])  # type: ignore[attr-defined]
        return call

    return decorate


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def _signature(request_class: type, own: list[inspect.Parameter]) -> inspect.Signature:
    """What ``help()`` and editors show: the settings and their defaults."""
    empty = inspect.Parameter.empty
    flat = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=empty if entry.default is MISSING else entry.default,
            annotation=entry.annotation,
        )
        for entry in settings_of(request_class)
    ]
    return inspect.Signature(sorted([*flat, *own], key=lambda parameter: parameter.default is not empty))
