"""Requests as flat settings: the fields of a dataclass and of the dataclasses nested in it, under one level of names.

A command line and the keywords of a Python call are flat; a request is made of parts that several requests share. This
module goes from one to the other. A field's help text is its entry under ``Attributes:`` in the docstring of its class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_origin, get_type_hints

from draftgauge.core.config import convert
from draftgauge.core.errors import DraftgaugeError

Request = TypeVar("Request")

_GIVEN = "_given"
_ENTRY = re.compile(r"^(?P<indent> *)(?P<names>\w+(?:, \w+)*): (?P<text>.*)$")


def setting(
    default: Any = MISSING,
    *,
    positional: bool = False,
    short: str = "",
    option: str = "",
    negative: str = "",
    repeated: bool = False,
) -> Any:
    """A dataclass field with what a command line needs to know beyond name, type and default.

    Args:
        default: of the field; none for a required one.
        positional: it may be given without its name.
        short: a one-letter option, e.g. ``-p``.
        option: the option's name where it is not the field's, e.g. ``--policy``.
        negative: the option that sets a boolean to False where that is not ``--no-<name>``, e.g. ``--raw``.
        repeated: a tuple whose items are given one by one, because commas are part of an item.
    """
    metadata = {"short": short, "option": option, "negative": negative, "repeated": repeated}
    return field(default=default, metadata=metadata, kw_only=not positional)


@dataclass(frozen=True)
class Setting:
    """One field of a request, wherever it is nested.

    Attributes:
        name: of the field.
        annotation: its type.
        default: ``dataclasses.MISSING`` where it must be given.
        help: its help text.
        positional: it may be given without its name.
        path: names of the fields that lead to the dataclass that holds it.
        metadata: see :func:`setting`.
    """

    name: str
    annotation: Any
    default: Any
    help: str
    positional: bool = False
    path: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is MISSING

    @property
    def option(self) -> str:
        """How a command line names it."""
        return self.metadata.get("option") or f"--{self.name.replace('_', '-')}"

    @property
    def repeated(self) -> bool:
        """Whether items are given one by one."""
        return bool(self.metadata.get("repeated"))


def settings_of(cls: type) -> tuple[Setting, ...]:
    """The settings of a request, in the order of its fields, nested ones in their place."""
    return _settings_of(cast(Any, cls))


@cache
def _settings_of(cls: Any) -> tuple[Setting, ...]:
    settings = tuple(_walk(cls, {}, ()))
    names = [entry.name for entry in settings]
    assert len(set(names)) == len(names), f"{cls.__name__} has two settings of one name: {names}"
    return settings


def make_request(
    cls: type[Request],
    arguments: Sequence[Any] = (),
    keywords: Mapping[str, Any] = MappingProxyType({}),
    spelled: Callable[[Setting], str] = lambda entry: entry.name,
) -> Request:
    """A request from flat values, converted to the types of its fields.

    Args:
        cls: the dataclass.
        arguments: values of the first settings, in their order.
        keywords: values by name. None stands for the default of a tuple; a lone text for a tuple is read as its items
            with commas between them, or as its only item where items are given one by one.
        spelled: how messages name a setting.

    Raises:
        DraftgaugeError: for an unknown name, a value of the wrong type, or a missing one.
    """
    settings = {entry.name: entry for entry in settings_of(cls)}
    if len(arguments) > len(settings):
        raise DraftgaugeError(f"{cls.__name__} takes at most {len(settings)} arguments, not {len(arguments)}")
    given = dict(zip(settings, arguments, strict=False))
    twice = sorted(set(given) & set(keywords))
    unknown = sorted(set(keywords) - set(settings))
    if twice or unknown:
        said = f"{', '.join(twice)} given twice" if twice else f"no setting {', '.join(map(repr, unknown))}"
        raise DraftgaugeError(f"{cls.__name__}: {said}; its settings are {', '.join(settings)}")
    given |= keywords
    values = {name: _converted(settings[name], value, spelled(settings[name])) for name, value in given.items()}
    missing = [name for name, entry in settings.items() if entry.required and name not in values]
    if missing:
        raise DraftgaugeError(f"{cls.__name__} needs {', '.join(missing)}")
    request = _build(cls, {(*settings[name].path, name): value for name, value in values.items()})
    object.__setattr__(request, _GIVEN, frozenset(name for name, value in given.items() if value is not None))
    return request


def given_settings(request: Any) -> frozenset[str]:
    """Names of the settings that :func:`make_request` was given; of other requests, those that are not the default."""
    noted: frozenset[str] | None = getattr(request, _GIVEN, None)
    if noted is not None:
        return noted
    settings = settings_of(type(request))
    return frozenset(entry.name for entry in settings if get_setting(request, entry) != entry.default)


def get_setting(request: Any, entry: Setting) -> Any:
    """The value of a setting in a request."""
    for name in (*entry.path, entry.name):
        request = getattr(request, name)
    return request


def summary_of(cls: type) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())


def attribute_docs(cls: type) -> dict[str, str]:
    """The entries under ``Attributes:`` in the docstrings of a class and of those it inherits from; names
    in code marks stand in quotes."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_attribute_docs(base)
    return docs


def _own_attribute_docs(cls: type) -> dict[str, str]:
    lines = iter(inspect.cleandoc(cls.__doc__ or "").splitlines())
    if not any(line.strip() == "Attributes:" for line in lines):
        return {}
    docs: dict[str, list[str]] = {}
    names: list[str] = []
    for line in lines:
        if line and not line.startswith(" "):
            break
        entry = _ENTRY.match(line)
        if entry is not None and len(entry["indent"]) == 4:
            names = entry["names"].split(", ")
            docs |= {name: [entry["text"]] for name in names}
        elif line.strip():
            for name in names:
                docs[name].append(line.strip())
    return {name: " ".join(text).replace("``", "'") for name, text in docs.items()}


def _walk(cls: type, default: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Setting]:
    """``default`` holds the values that an outer request gives to the fields of a nested dataclass."""
    hints, docs = get_type_hints(cls), attribute_docs(cls)
    for entry in fields(cast(Any, cls)):
        value = default.get(entry.name, _default(entry))
        annotation = hints[entry.name]
        if is_dataclass(annotation):
            inner = {} if value is MISSING else {f.name: getattr(value, f.name) for f in fields(cast(Any, annotation))}
            yield from _walk(cast(type, annotation), inner, (*path, entry.name))
        else:
            positional = not path and not entry.kw_only
            yield Setting(entry.name, annotation, value, docs.get(entry.name, ""), positional, path, entry.metadata)


def _default(entry: Field[Any]) -> Any:
    return entry.default_factory() if entry.default_factory is not MISSING else entry.default


def _converted(entry: Setting, value: Any, where: str) -> Any:
    if get_origin(entry.annotation) is tuple:
        if value is None and not entry.required:
            return entry.default
        if isinstance(value, Path) or (entry.repeated and isinstance(value, str)):
            value = (value,)
        value = tuple(value) if isinstance(value, set | frozenset) else value
    return convert(value, entry.annotation, where)


def _build(cls: type[Request], values: Mapping[tuple[str, ...], Any], base: Any = MISSING) -> Request:
    """An instance with these values, by path, and for the rest those of ``base`` or the defaults."""
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for entry in fields(cast(Any, cls)):
        given = {path[1:]: value for path, value in values.items() if path[0] == entry.name}
        start = _default(entry) if base is MISSING else getattr(base, entry.name)
        if () in given:
            arguments[entry.name] = given[()]
        elif is_dataclass(hints[entry.name]):
            arguments[entry.name] = _build(cast(type, hints[entry.name]), given, start)
        elif start is not MISSING:
            arguments[entry.name] = start
    return cls(**arguments)
