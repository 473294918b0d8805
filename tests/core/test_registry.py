from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.registry import Registry

drinks: Registry[Any] = Registry("drink")


@drinks.register("water")
@dataclass(frozen=True)
class Water:
    pass


@drinks.register("tea")
@dataclass(frozen=True)
class Tea:
    minutes: int
    sugar: float = 0.0
    lemon: bool = False


@drinks.register("punch")
def punch(parts: tuple[int, ...] = (1, 2), cups: int = 4) -> tuple[str, tuple[int, ...], int]:
    return "punch", parts, cups


@pytest.mark.parametrize(
    ("spec", "made"),
    [
        ("water", Water()),
        ("tea:4", Tea(4)),
        ("tea:minutes=4", Tea(4)),
        ("tea:4,sugar=2", Tea(4, 2.0)),
        ("tea:lemon=true,minutes=3", Tea(3, lemon=True)),
        ("punch", ("punch", (1, 2), 4)),
        ("punch:1,2,3", ("punch", (1, 2, 3), 4)),
        ("punch:parts=1,2,3,cups=9", ("punch", (1, 2, 3), 9)),
    ],
)
def test_specs(spec: str, made: object) -> None:
    assert drinks.create(*drinks.parse(spec)) == made


def test_defaults_fill_what_the_spec_leaves_out_where_it_exists() -> None:
    assert drinks.create(*drinks.parse("tea"), minutes=7) == Tea(7)
    assert drinks.create(*drinks.parse("tea:4"), minutes=7) == Tea(4)
    assert drinks.create(*drinks.parse("water"), minutes=7) == Water()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("beer", "unknown drink 'beer'; known: punch, tea, water"),
        ("punsh", "unknown drink 'punsh'; did you mean punch?"),
        ("", "unknown drink ''; known"),
        ("tea", r"drink tea needs minutes: write tea:minutes=<int>,\[sugar=<float>, by default 0.0\]"),
        ("tea:4,milk=1", "drink tea has no parameter 'milk': write tea:minutes=<int>"),
        ("tea:soon", "drink tea: minutes must be int, not 'soon'"),
        ("tea:4,minutes=5", "gives minutes twice"),
        ("tea:4,water", "names more than one drink: give water by itself"),
        ("tea:", "nothing follows the colon"),
        ("water:3", "drink water takes no parameters: write water"),
    ],
)
def test_errors_say_what_to_write(spec: str, message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        drinks.create(*drinks.parse(spec))


def test_what_the_caller_gives_is_not_asked_of_the_user() -> None:
    snacks: Registry[int] = Registry("snack", supplied=("budget",), defaults={"most": "what is left"})

    @snacks.register("nuts")
    def nuts(count: int, *, most: int, budget: float) -> int:
        return min(count, most, int(budget))

    with pytest.raises(DraftgaugeError, match=r"write nuts:count=<int>,\[most=<int>, by default what is left\]$"):
        snacks.create(*snacks.parse("nuts:size=3"), most=2, budget=9.0)
    assert snacks.create(*snacks.parse("nuts:5"), most=2, budget=9.0) == 2
