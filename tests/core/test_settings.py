"""Requests as flat settings: names, defaults and help of the fields; values converted, or refused by name."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from draftgauge.core.config import (
    convert,
    from_mapping,
    given_settings,
    make_request,
    option,
    settings_of,
    summary_of,
    to_mapping,
)
from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.parts import Compression


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where."""

    device: str | None = option(None, help="cpu or cuda.")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part."""

    names: tuple[str, ...] = option(("a", "b"), help="of things.")
    limit: int | None = option(None, help="of things.")
    machine: Machine = Machine()


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Do it all,
    and more.
    """

    folder: Path = option(help="where to.", positional=True)
    specs: tuple[str, ...] = option((), help="one by one.", repeated=True, name="--one-spec")
    part: Part = Part(limit=3)


def test_nested_fields_are_settings_under_one_level_of_names() -> None:
    found = {entry.name: entry for entry in settings_of(Whole)}
    assert list(found) == ["folder", "specs", "names", "limit", "device"]
    assert found["folder"].default is MISSING
    assert found["folder"].positional
    assert found["limit"].default == 3  # of the outer request, not of the part
    assert found["device"].path == ("part", "machine")
    assert (found["names"].help, found["device"].help) == ("of things.", "cpu or cuda.")
    assert summary_of(Whole) == "Do it all, and more."


@pytest.mark.parametrize(
    ("arguments", "keywords", "expected"),
    [
        (("x",), {}, Whole(folder=Path("x"))),
        (("x", "a:b=1,2"), {}, Whole(folder=Path("x"), specs=("a:b=1,2",))),
        ((), {"folder": Path("x"), "specs": ["a", Path("b")]}, Whole(folder=Path("x"), specs=("a", "b"))),
        (("x",), {"names": "c, d"}, Whole(folder=Path("x"), part=Part(names=("c", "d"), limit=3))),
        (("x",), {"names": None, "specs": None}, Whole(folder=Path("x"))),
        (("x",), {"device": "cpu"}, Whole(folder=Path("x"), part=Part(limit=3, machine=Machine(device="cpu")))),
        (("x",), {"limit": "none"}, Whole(folder=Path("x"), part=Part(limit=None))),
    ],
)
def test_flat_values_make_a_request(arguments: tuple[Any, ...], keywords: dict[str, Any], expected: Whole) -> None:
    assert make_request(Whole, arguments, keywords) == expected


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, "Whole needs folder"),
        (("x",), {"folder": "y"}, "folder given twice"),
        (("x",), {"limits": 1}, "no setting 'limits'; its settings are folder, specs"),
        (("x",), {"one_spec": 1}, "no setting 'one_spec' .it is 'specs'.; its settings are folder, specs"),
        (("x",), {"limit": "few"}, "limit must be int or none, not 'few'"),
        (("x",), {"names": 3}, "names must be list of str, not 3"),
        (("x",) * 6, {}, "takes folder, specs by position, not 6"),
    ],
)
def test_what_cannot_be_converted_is_named(arguments: tuple[Any, ...], keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        make_request(Whole, arguments, keywords)


def test_what_was_given_is_noted_even_where_it_is_the_default() -> None:
    request = make_request(Whole, ["here"], {"limit": 3, "device": None})
    assert given_settings(request) == {"folder", "limit"}
    assert request == Whole(folder=Path("here"))
    assert given_settings(Whole(folder=Path("here"), part=Part(limit=4))) == {"folder", "limit"}


@dataclass(frozen=True)
class Optimiser:
    name: Literal["adamw", "sgd"] = "adamw"
    rate: float = 3e-4


@dataclass(frozen=True)
class Run:
    steps: int
    out: Path = Path("out")
    gammas: tuple[int, ...] = (1, 2, 4)
    window: tuple[int, float] = (8, 0.5)
    resume: bool = False
    limit: int | None = None
    title: str = ""
    optimiser: Optimiser = field(default_factory=Optimiser)
    fallback: Optimiser | None = None


VALUES = {"steps": 10, "out": "runs/a", "gammas": [3, 5], "resume": True, "limit": 7}
VALUES |= {"optimiser": {"name": "sgd", "rate": 1}}


def test_a_mapping_fills_a_nested_dataclass() -> None:
    filled = Run(10, Path("runs/a"), (3, 5), resume=True, limit=7, optimiser=Optimiser("sgd", 1.0))
    assert from_mapping(Run, VALUES) == filled


def test_mapping_survives_json() -> None:
    run = Run(3, Path("x"), (), (1, 2.5), True, None, "t", Optimiser(rate=0.5), Optimiser("sgd"))
    assert from_mapping(Run, json.loads(json.dumps(to_mapping(run)))) == run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"steps": 1, "stepz": 2}, "unknown key 'stepz'; known: steps, out, gammas"),
        ({"steps": 1, "optimiser": {"lr": 1}}, "optimiser: unknown key 'lr'; known: name, rate"),
        ({"steps": 1, "fallback": {"lr": 1}}, "fallback: unknown key 'lr'; known: name, rate"),
        ({"steps": 1, "optimiser": {"name": "lion"}}, "optimiser: name must be 'adamw' or 'sgd', not 'lion'"),
        ({}, "'steps' must be given"),
        ({"steps": 1.5}, "steps must be int, not 1.5"),
        ({"steps": True}, "steps must be int, not True"),
        ({"steps": "many"}, "steps must be int, not 'many'"),
        ({"steps": 1, "gammas": 3}, "gammas must be list of int, not 3"),
        ({"steps": 1, "gammas": [1, "x"]}, r"gammas\[1\] must be int, not 'x'"),
        ({"steps": 1, "window": [1]}, r"window must be list of 2 \(int, float\)"),
        ({"steps": 1, "resume": 1}, "resume must be bool, not 1"),
        ({"steps": 1, "out": 5}, "out must be path, not 5"),
        ({"steps": 1, "limit": "few"}, "limit must be int or none, not 'few'"),
        ({"steps": 1, "title": 5}, "title must be str, not 5"),
        ({"steps": 1, "optimiser": 5}, "optimiser must be Optimiser, not 5"),
    ],
)
def test_wrong_keys_and_types_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        from_mapping(Run, values)


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("4", int, 4),
        ("0.5", float, 0.5),
        ("True", bool, True),
        ("false", bool, False),
        ("none", int | None, None),
        ("none", str | None, "none"),  # also the name of a policy
        ("none", Compression, "uncompressed"),  # its name in earlier versions
        ("none,int8", tuple[Compression, ...], ("uncompressed", "int8")),
        ("3", int | None, 3),
        ("a/b", Path, Path("a/b")),
        ("1, 2,4", tuple[int, ...], (1, 2, 4)),
        ("", tuple[int, ...], ()),
        ("8", Literal[4, 8], 8),
    ],
)
def test_text_is_read_as_what_is_wanted(text: str, annotation: Any, value: Any) -> None:
    converted = convert(text, annotation, "x")
    assert converted == value
    assert type(converted) is type(value)
