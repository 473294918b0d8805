"""Frozen dataclasses from mappings and text, with every key and type checked; requests as flat settings.

A command line and the keywords of a Python call are flat; a request is made of parts that several requests share. The
fields of a dataclass and of those nested in it stand under one level of names.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from draftgauge.core.errors import ConfigError, DraftgaugeError

Config = TypeVar("Config")


def from_mapping(cls: type[Config], values: Mapping[str, Any], where: str = "configuration") -> Config:
    """A dataclass from a mapping of its fields' names."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a table of keys and values, not {values!r}")
    by_name: dict[str, Field[Any]] = {field.name: field for field in fields(cast(Any, cls)) if field.init}
    unknown = sorted(set(values) - set(by_name))
    if unknown:
        raise ConfigError(f"{where}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(by_name)}")
    missing = sorted(
        name
        for name, field in by_name.items()
        if field.default is MISSING and field.default_factory is MISSING and name not in values
    )
    if missing:
        raise ConfigError(f"{where}: {', '.join(map(repr, missing))} must be given")
    hints = get_type_hints(cls, include_extras=True)
    return cls(**{name: convert(value, hints[name], f"{where}: {name}") for name, value in values.items()})


def to_mapping(config: object) -> dict[str, Any]:
    return {field.name: _plain(getattr(config, field.name)) for field in fields(cast(Any, config))}


def convert(value: Any, annotation: Any, where: str) -> Any:
    """A value as an annotation wants it: ``int, float, str, bool, Path, tuple, Literal, Mapping``, optional ones,
    dataclasses.

    Text is read as what is wanted, so that command lines and JSON take the same way: ``"4"`` as 4, ``"1,2"`` as a
    tuple. ``"none"`` is None unless text is wanted. An int serves as a float, a path as text, a number of NumPy's as
    Python's; a bool never serves as a number.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    converted: Any = None
    if annotation is Any:
        return value
    if origin is Annotated:  # a type, and what a value has to go through before
        return convert(arguments[1](value), arguments[0], where)
    if origin in (Union, types.UnionType):
        return _one_of(value, annotation, where)
    if origin is Literal:
        for choice in arguments:
            if (type(value) is type(choice) and value == choice) or (isinstance(value, str) and value == str(choice)):
                return choice
    elif origin is tuple:
        return _items(value, annotation, where)
    elif origin is Mapping:
        converted = value if isinstance(value, Mapping) else None
    elif is_dataclass(annotation):
        if isinstance(value, Mapping):
            return from_mapping(cast(type, annotation), value, where)
        converted = value if isinstance(value, cast(type, annotation)) else None
    elif annotation in (int, float):
        converted = _number(value, annotation)
    elif annotation is bool:
        converted = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        converted = converted if isinstance(converted, bool) else None
    elif annotation is str:
        converted = str(value) if isinstance(value, str | Path) else None
    elif annotation is Path:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value  # a Run is one too
        usable = isinstance(value, str) and value and "\0" not in value
        converted = Path(value) if usable else None
    else:
        raise TypeError(f"{where}: no conversion to {annotation}")
    if converted is None:
        raise _mismatch(value, annotation, where)
    return converted


def type_name(annotation: Any) -> str:
    """An annotation in words for users: ``int``, ``int or none``, ``"fp32" or "bf16"``, ``list of int``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {type_name(arguments[0])}"
        return f"list of {len(arguments)} ({', '.join(map(type_name, arguments))})"
    if annotation is types.NoneType:
        return "none"
    return "path" if annotation is Path else str(getattr(annotation, "__name__", annotation))


def _mismatch(value: Any, annotation: Any, where: str) -> ConfigError:
    return ConfigError(f"{where} must be {type_name(annotation)}, not {value!r}")


def _number(value: Any, kind: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | (Integral if kind is int else Real)):
        return None
    try:
        return kind(value)
    except (ValueError, OverflowError):
        return None


def _one_of(value: Any, annotation: Any, where: str) -> Any:
    choices = get_args(annotation)
    none = value is None or (isinstance(value, str) and value.lower() == "none" and str not in choices)
    if none and types.NoneType in choices:
        return None
    for choice in (choice for choice in choices if choice is not types.NoneType):
        try:
            return convert(value, choice, where)
        except ConfigError as error:
            if isinstance(value, Mapping):  # what is wrong inside says more than "must be A or B"
                raise error
    raise _mismatch(value, annotation, where)


def _items(value: Any, annotation: Any, where: str) -> tuple[Any, ...]:
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    wanted = get_args(annotation)
    if not isinstance(items, list | tuple):
        raise _mismatch(value, annotation, where)
    if wanted[-1] is Ellipsis:
        if wanted[0] in (int, float, str) and set(map(type, items)) <= {wanted[0]}:
            return tuple(items)  # at once, as there are thousands of tokens in a prompt
        wanted = (wanted[0],) * len(items)
    if len(items) != len(wanted):
        raise _mismatch(value, annotation, where)
    return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(items, wanted, strict=True)))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # an array
        return value.tolist()
    return str(value) if isinstance(value, Path) else value


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
    call: str = "",
) -> Request:
    """A request from flat values, converted to the types of its fields.

    Args:
        keywords: values by name. None stands for the default of a tuple. A lone text for a tuple is split at commas, or
            is its only item where items are given one by one.
        call: what takes them, in messages; by default the class.
    """
    settings, call = {entry.name: entry for entry in settings_of(cls)}, call or cls.__name__
    leading = [entry.name for entry in leading_settings(cls)]
    if len(arguments) > len(leading):
        raise DraftgaugeError(
            f"{call} takes {', '.join(leading)} by position, not {len(arguments)} arguments: name the others"
        )
    given = dict(zip(leading, arguments, strict=False))
    twice = sorted(set(given) & set(keywords))
    unknown = sorted(set(keywords) - set(settings))
    if twice or unknown:
        shown = (name for name, entry in settings.items() if not entry.hidden)
        spelt = {entry.option.removeprefix("--").replace("-", "_"): name for name, entry in settings.items()}
        meant = [f"{name!r} (it is {spelt[name]!r})" if name in spelt else repr(name) for name in unknown]
        said = f"{', '.join(twice)} given twice" if twice else f"no setting {', '.join(meant)}"
        raise DraftgaugeError(f"{call}: {said}; its settings are {', '.join(shown)}")
    given |= keywords
    missing = [name for name, entry in settings.items() if entry.default is MISSING and name not in given]
    if missing:
        raise DraftgaugeError(f"{call} needs {', '.join(missing)}")
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
