"""Frozen dataclasses from mappings and text, with every key and type checked."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from draftgauge.core.errors import ConfigError

Config = TypeVar("Config")

_TRUTH = {"true": True, "false": False}


def from_mapping(cls: type[Config], values: Mapping[str, Any], where: str = "configuration") -> Config:
    """A dataclass from a mapping of its fields' names.

    Args:
        cls: a dataclass whose fields have types that :func:`convert` knows.
        values: nested mappings for nested dataclasses.
        where: what the values came from, for messages.

    Raises:
        ConfigError: for a key that is no field (naming the fields), a field without value, a value of the wrong
            type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be a table of keys and values, not {values!r}")
    by_name: dict[str, Field[Any]] = {field.name: field for field in fields(cast(Any, cls)) if field.init}
    unknown = sorted(set(values) - set(by_name))
    if unknown:
        raise ConfigError(f"{where}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(by_name)}")
    required = {
        name for name, field in by_name.items() if field.default is MISSING and field.default_factory is MISSING
    }
    missing = sorted(required - set(values))
    if missing:
        raise ConfigError(f"{where}: {', '.join(map(repr, missing))} must be given")
    hints = get_type_hints(cls)
    return cls(**{name: convert(value, hints[name], f"{where}: {name}") for name, value in values.items()})


def to_mapping(config: object) -> dict[str, Any]:
    """The inverse of :func:`from_mapping`, ready for JSON: tuples are lists, paths are text."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(cast(Any, config))}


def convert(value: Any, annotation: Any, where: str) -> Any:
    """A value as an annotation wants it: ``int, float, str, bool, Path, tuple, Literal, Mapping``, optional ones,
    dataclasses.

    Text is read as what is wanted (``"4"`` -> 4, ``"1,2"`` -> (1, 2), ``"none"`` -> None unless text is wanted), so
    that command lines and JSON take the same way. An int serves as a float, a path as text, a number of NumPy's as
    Python's; a bool never serves as a number.

    Raises:
        ConfigError: if the value is of another type, saying which and where.
    """
    origin = get_origin(annotation)
    if annotation is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, annotation, where)
    if origin is Literal:
        return _convert_literal(value, get_args(annotation), where)
    if origin is tuple:
        return _convert_tuple(value, get_args(annotation), where)
    if origin is Mapping:
        if isinstance(value, Mapping):
            return value
    elif is_dataclass(annotation):
        if isinstance(value, Mapping):
            return from_mapping(cast(type, annotation), value, where)
        if isinstance(value, cast(type, annotation)):
            return value
    elif annotation in _SCALARS:
        converted = _SCALARS[annotation](value)
        if converted is not None:
            return converted
    else:
        raise TypeError(f"{where}: no conversion to {annotation}")
    raise _mismatch(value, annotation, where)


def type_name(annotation: Any) -> str:
    """An annotation in words for users: ``int``, ``int or none``, ``"fp32" or "bf16"``, ``list of int``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
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


def _int(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    return int(value) if not isinstance(value, bool) and isinstance(value, Integral) else None


def _float(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if not isinstance(value, bool) and isinstance(value, Real) else None


def _bool(value: Any) -> bool | None:
    if isinstance(value, str):
        return _TRUTH.get(value.lower())
    return value if isinstance(value, bool) else None


def _str(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) else None


def _path(value: Any) -> Path | None:
    if "\0" in str(value) or value == "":
        return None
    return Path(value) if isinstance(value, str | Path) else None


_SCALARS = {int: _int, float: _float, bool: _bool, str: _str, Path: _path}


def _convert_union(value: Any, annotation: Any, where: str) -> Any:
    choices = get_args(annotation)
    said = isinstance(value, str) and value.lower() == "none" and str not in choices
    if types.NoneType in choices and (value is None or said):
        return None
    for choice in choices:
        if choice is types.NoneType:
            continue
        try:
            return convert(value, choice, where)
        except ConfigError as error:
            # Inside a nested dataclass the inner message says more than "must be A or B".
            if isinstance(value, Mapping):
                raise error
    raise _mismatch(value, annotation, where)


def _convert_literal(value: Any, choices: tuple[Any, ...], where: str) -> Any:
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
        if isinstance(value, str) and str(choice) == value:
            return choice
    raise _mismatch(value, Literal[choices], where)


def _convert_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    items = [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value
    annotation = tuple[arguments]  # type: ignore[valid-type]
    if not isinstance(items, list | tuple):
        raise _mismatch(value, annotation, where)
    if arguments[-1] is Ellipsis:
        if arguments[0] in _SCALARS and set(map(type, items)) <= {arguments[0]}:
            return tuple(items)  # at once, as there are thousands of tokens in a prompt
        arguments = (arguments[0],) * len(items)
    if len(items) != len(arguments):
        raise _mismatch(value, annotation, where)
    return tuple(
        convert(item, wanted, f"{where}[{i}]") for i, (item, wanted) in enumerate(zip(items, arguments, strict=True))
    )


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_mapping(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
