from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies import spec as specs
from draftgauge.policies.spec import PolicySpec, register_policy
from linear_costs import LinearCosts


@dataclass(frozen=True)
class Water:
    pass


@dataclass(frozen=True)
class Tea:
    minutes: int
    sugar: float = 0.0
    lemon: bool = False


def punch(parts: tuple[int, ...] = (1, 2), cups: int = 4) -> tuple[str, tuple[int, ...], int]:
    return "punch", parts, cups


def nuts(count: int, *, gamma_max: int, costs: LinearCosts) -> int:
    return min(count, gamma_max, costs.gamma_max)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "POLICIES", {})
    for name, factory in {"water": Water, "tea": Tea, "punch": punch, "nuts": nuts}.items():
        register_policy(name, "")(factory)


def made(spec: str, gamma_max: int = 8) -> Any:
    return PolicySpec.parse(spec).make(gamma_max, LinearCosts(9))


@pytest.mark.parametrize(
    ("spec", "expected"),
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
def test_specs(spec: str, expected: object) -> None:
    assert made(spec) == expected


def test_the_longest_draft_is_what_the_caller_gives_unless_the_spec_does() -> None:
    assert made("nuts:5", gamma_max=2) == 2
    assert made("nuts:5,gamma_max=1", gamma_max=2) == 1
    assert made("nuts:20", gamma_max=30) == 9


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("beer", "unknown policy 'beer'; known: nuts, punch, tea, water"),
        ("punsh", "unknown policy 'punsh'; did you mean punch?"),
        ("", "unknown policy ''; known"),
        ("tea", r"policy tea needs minutes: write tea:minutes=<int>,\[sugar=<float>, by default 0.0\]"),
        ("tea:4,milk=1", "policy tea has no parameter 'milk': write tea:minutes=<int>"),
        ("tea:soon", "policy tea: minutes must be int, not 'soon'"),
        ("tea:4,minutes=5", "gives minutes twice"),
        ("tea:4,water", "names more than one policy: give water by itself"),
        ("tea:", "nothing follows the colon"),
        ("water:3", "policy water takes no parameters: write water"),
        ("nuts:costs=3", r"write nuts:count=<int>,\[gamma_max=<int>, by default the longest draft\]$"),
    ],
)
def test_errors_say_what_to_write(spec: str, message: str) -> None:
    with pytest.raises(DraftgaugeError, match=message):
        made(spec)
