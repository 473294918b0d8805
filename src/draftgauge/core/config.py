"""Frozen dataclasses from mappings and text, with every key and type checked."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from draftgauge.core.errors import ConfigError

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
        usable = isinstance(value, str | Path) and str(value) and "\0" not in str(value)
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
