"""Requests as flat settings: names, defaults and help texts of the fields; values converted, or refused by name."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import pytest

from draftgauge.core.config import given_settings, make_request, option, settings_of, summary_of
from draftgauge.core.errors import DraftgaugeError


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
