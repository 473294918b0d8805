"""Names that users type and their factories: ``fixed``, ``fixed:4``, ``confidence:threshold=0.4,gamma_max=16``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from draftgauge.core.config import convert, type_name
from draftgauge.core.errors import DraftgaugeError

T = TypeVar("T")
Factory = TypeVar("Factory", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Named factories of one kind of thing.

    A *spec* is ``name`` or ``name:key=value,key=value``. The first value may come without its key (``fixed:4``); a
    piece without ``=`` after a keyed one continues its value (``sglang-adaptive:candidates=1,2,4``). Values are
    converted by the annotations of the factory's parameters.

    Args:
        supplied: parameters that only the caller of :meth:`create` gives, and no spec.
        defaults: in words, by parameter, what the caller gives where a spec leaves it out.
    """

    def __init__(self, kind: str, supplied: Collection[str] = (), defaults: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.supplied = frozenset(supplied)
        self._defaults = dict(defaults or {})
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Factory], Factory]:
        """Decorator of a function or class with annotated parameters that makes a ``T``."""

        def add(factory: Factory) -> Factory:
            assert name not in self._factories, f"{self.kind} {name} is registered twice"
            self._factories[name] = factory
            return factory

        return add

    def __contains__(self, name: object) -> bool:
        return name in self._factories

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._factories)

    def takes(self, name: str, parameter: str) -> bool:
        return parameter in self._parameters(name)

    def create(self, name: str, arguments: Mapping[str, Any], **defaults: Any) -> T:
        """Make what a spec names, from what :meth:`parse` found in it."""
        parameters = self._parameters(name)
        given = {key: value for key, value in defaults.items() if key in parameters} | dict(arguments)
        missing = [key for key, each in parameters.items() if each.default is each.empty and key not in given]
        if missing:
            raise DraftgaugeError(f"{self.kind} {name} needs {', '.join(missing)}: {self.usage(name)}")
        return self._factories[name](**given)

    def parse(self, spec: str) -> tuple[str, dict[str, Any]]:
        """A spec's name and its converted arguments."""
        name, colon, rest = spec.partition(":")
        others = [part for part in spec.split(",")[1:] if part.partition(":")[0] in self._factories]
        if others:
            raise DraftgaugeError(f"{spec!r} names more than one {self.kind}: give {others[0]} by itself")
        if name not in self._factories:
            alike = get_close_matches(name, self._factories, 1)
            meant = f"did you mean {alike[0]}? " if alike else ""
            raise DraftgaugeError(f"unknown {self.kind} {name!r}; {meant}known: {', '.join(sorted(self._factories))}")
        if colon and not rest:
            raise DraftgaugeError(f"{spec!r}: nothing follows the colon; {self.usage(name)}")
        parameters = self._settable(name)
        pairs: list[tuple[str, str]] = []  # ``4,window=8`` -> (first, "4"), ("window", "8")
        for piece in rest.split(",") if rest else ():
            key, equals, value = piece.partition("=")
            if equals:
                pairs.append((key.strip(), value.strip()))
            elif pairs:
                pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece.strip()}")
            else:
                pairs.append((next(iter(parameters), ""), piece.strip()))
        arguments: dict[str, Any] = {}
        for key, text in pairs:
            if key not in parameters:
                problem = f"has no parameter {key!r}" if parameters else "takes no parameters"
                raise DraftgaugeError(f"{self.kind} {name} {problem}: {self.usage(name)}")
            if key in arguments:
                raise DraftgaugeError(f"{spec!r} gives {key} twice")
            arguments[key] = convert(text, parameters[key].annotation, f"{self.kind} {name}: {key}")
        return name, arguments

    def usage(self, name: str) -> str:
        """How a spec of this name is written, e.g. ``write fixed:gamma=<int>``; optional parameters are in brackets."""
        parts = []
        for key, parameter in self._settable(name).items():
            shown = f"{key}=<{type_name(parameter.annotation)}>"
            default = self._defaults.get(key, parameter.default)
            parts.append(shown if default is parameter.empty else f"[{shown}, by default {default}]")
        return f"write {name}:{','.join(parts)}" if parts else f"write {name}"

    def _settable(self, name: str) -> dict[str, inspect.Parameter]:
        return {key: parameter for key, parameter in self._parameters(name).items() if key not in self.supplied}

    def _parameters(self, name: str) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self._factories[name], eval_str=True).parameters)
