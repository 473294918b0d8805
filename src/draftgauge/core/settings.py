"""Requests as flat settings: the fields of a dataclass and of the dataclasses nested in it, under one level of names.

A command line and the keywords of a Python call are flat; a request is made of parts that several requests share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_origin, get_type_hints

from draftgauge.core.config import convert
from draftgauge.core.errors import DraftgaugeError

Request = TypeVar("Request")
_GIVEN = "_given"


def option(
    default: Any = MISSING,
    *,
    help: str,
    positional: bool = False,
    short: str = "",
    name: str = "",
    negative: str = "",
    repeated: bool = False,
) -> Any:
    """A dataclass field that is an option of a verb; other fields belong to the configuration alone.

    Args:
        default: of the field; none for a required one.
        help: what it does; empty for the former name of another, which is taken and not shown.
        positional: it may be given without its name.
        name: the option's name where it is not the field's, e.g. ``--policy``.
        negative: the option that sets a boolean to False where that is not ``--no-<name>``, e.g. ``--raw``.
        repeated: a tuple whose items are given one by one, because commas are part of an item.
    """
    metadata = {"help": help, "short": short, "option": name, "negative": negative, "repeated": repeated}
    return field(default=default, metadata=metadata, kw_only=not positional)


@dataclass(frozen=True)
class Setting:
    """One field of a request, wherever it is nested; the rest is as in :func:`option`. ``path`` names the parts that
    lead to it; ``default`` is ``dataclasses.MISSING`` where it must be given."""

    name: str
    annotation: Any
    default: Any
    path: tuple[str, ...]
    positional: bool
    help: str = ""
    short: str = ""
    option: str = ""
    negative: str = ""
    repeated: bool = False

    @property
    def hidden(self) -> bool:
        return not self.help


def settings_of(cls: Any) -> tuple[Setting, ...]:
    return _settings_of(cls)


@cache
def _settings_of(cls: Any) -> tuple[Setting, ...]:
    settings = tuple(_walk(cls, ()))
    names = [entry.name for entry in settings]
    assert len(set(names)) == len(names), f"{cls.__name__} has two settings of one name: {names}"
    return settings


def leading_settings(cls: Any) -> tuple[Setting, ...]:
    """What a call may give by position: the settings before the first part, and before one that has to be named."""
    leading: list[Setting] = []
    for entry in settings_of(cls):
        if entry.path or (entry.default is MISSING and leading and leading[-1].default is not MISSING):
            break
        leading.append(entry)
    return tuple(leading)


def _walk(owner: Any, path: tuple[str, ...]) -> Iterator[Setting]:
    """``owner`` is a dataclass, or the instance that is the default of a part of one."""
    hints = get_type_hints(owner if isinstance(owner, type) else type(owner), include_extras=True)
    for entry in fields(owner):
        default = getattr(owner, entry.name, MISSING)
        if is_dataclass(hints[entry.name]):
            yield from _walk(default, (*path, entry.name))
        elif entry.metadata:  # else a field of the configuration alone
            told = dict(entry.metadata)
            told["option"] = told.get("option") or f"--{entry.name.replace('_', '-')}"
            yield Setting(entry.name, hints[entry.name], default, path, not path and not entry.kw_only, **told)


def make_request(
    cls: type[Request],
    arguments: Sequence[Any] = (),
    keywords: Mapping[str, Any] = MappingProxyType({}),
    spelled: Callable[[Setting], str] = lambda entry: entry.name,
) -> Request:
    """A request from flat values, converted to the types of its fields.

    Args:
        keywords: values by name. None stands for the default of a tuple. A lone text for a tuple is split at commas, or
            is its only item where items are given one by one.
    """
    settings = {entry.name: entry for entry in settings_of(cls)}
    leading = [entry.name for entry in leading_settings(cls)]
    if len(arguments) > len(leading):
        raise DraftgaugeError(
            f"{cls.__name__} takes {', '.join(leading)} by position, not {len(arguments)} arguments: name the others"
        )
    given = dict(zip(leading, arguments, strict=False))
    twice = sorted(set(given) & set(keywords))
    unknown = sorted(set(keywords) - set(settings))
    if twice or unknown:
        shown = (name for name, entry in settings.items() if not entry.hidden)
        said = f"{', '.join(twice)} given twice" if twice else f"no setting {', '.join(map(repr, unknown))}"
        raise DraftgaugeError(f"{cls.__name__}: {said}; its settings are {', '.join(shown)}")
    given |= keywords
    missing = [name for name, entry in settings.items() if entry.default is MISSING and name not in given]
    if missing:
        raise DraftgaugeError(f"{cls.__name__} needs {', '.join(missing)}")
    values = {name: _converted(settings[name], value, spelled(settings[name])) for name, value in given.items()}
    request = cls(**_nested(cls, {(*settings[name].path, name): value for name, value in values.items()}))
    object.__setattr__(request, _GIVEN, frozenset(name for name, value in given.items() if value is not None))
    return request


def _converted(entry: Setting, value: Any, where: str) -> Any:
    if get_origin(entry.annotation) is tuple:
        if value is None and entry.default is not MISSING:
            return entry.default
        if isinstance(value, Path) or (entry.repeated and isinstance(value, str)):
            value = (value,)
        value = tuple(value) if isinstance(value, set | frozenset | range) else value
    return convert(value, entry.annotation, where)


def _nested(owner: Any, values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Values by path as values of the fields of ``owner``, a dataclass or an instance of one."""
    own = {path[0]: value for path, value in values.items() if len(path) == 1}
    for part in dict.fromkeys(path[0] for path in values if len(path) > 1):
        default = getattr(owner, part)
        inner = {path[1:]: value for path, value in values.items() if path[0] == part}
        own[part] = replace(default, **_nested(default, inner))
    return own


def given_settings(request: Any) -> frozenset[str]:
    noted: frozenset[str] | None = getattr(request, _GIVEN, None)
    if noted is not None:
        return noted
    settings = settings_of(type(request))
    return frozenset(entry.name for entry in settings if get_setting(request, entry) != entry.default)


def get_setting(request: Any, entry: Setting) -> Any:
    for name in (*entry.path, entry.name):
        request = getattr(request, name)
    return request


def summary_of(cls: type) -> str:
    return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())
