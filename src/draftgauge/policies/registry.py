"""The policies by name: what ``--policy`` and the Python API take. Each policy registers itself in its own file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from draftgauge.core.config import type_name
from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy

NO_DRAFT = "no-draft"
FIXED = "fixed:"

Factory = TypeVar("Factory", bound=Callable[..., Policy])


@dataclass(frozen=True)
class PolicyEntry:
    """A policy's factory, and what is said of it.

    Attributes:
        factory: its parameters are those of a spec, and ``costs``, which only the caller gives. The caller also gives
            ``gamma_max`` and the target's ``compression`` where a spec leaves them out.
        grid: values to try for each of its parameters when it is tuned; empty if there is nothing to tune.
        compared: whether it is included in comparisons that name no policy.
        complexity: how many numbers of it are tuned or fitted; of policies that are level the least complex one is
            recommended.
    """

    factory: Callable[..., Policy]
    parameters: Mapping[str, inspect.Parameter]
    description: str
    grid: Mapping[str, tuple[Any, ...]]
    compared: bool
    complexity: int

    @property
    def settable(self) -> dict[str, inspect.Parameter]:
        return {key: parameter for key, parameter in self.parameters.items() if key != "costs"}


POLICIES: dict[str, PolicyEntry] = {}  # by name
INTERFACE = ("reset", "limit", "keep_drafting", "observe")


def register_policy(
    name: str,
    description: str,
    *,
    grid: Mapping[str, tuple[Any, ...]] | None = None,
    compared: bool = False,
    complexity: int | None = None,
) -> Callable[[Factory], Factory]:
    """Decorator of a policy's factory, see :class:`PolicyEntry`; ``complexity`` is by default the size of ``grid``."""

    def add(factory: Factory) -> Factory:
        assert name not in POLICIES, f"policy {name} is registered twice"
        numbers = len(grid or {}) if complexity is None else complexity
        parameters = inspect.signature(factory, eval_str=True).parameters
        POLICIES[name] = PolicyEntry(factory, parameters, description, dict(grid or {}), compared, numbers)
        return factory

    return add


def compared_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in POLICIES.items() if entry.compared)


def tunable_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in POLICIES.items() if entry.grid)


def grid_specs(name: str) -> Iterator[str]:
    grid = POLICIES[name].grid
    for values in product(*grid.values()):
        pairs = (f"{key}={_written(value)}" for key, value in zip(grid, values, strict=True))
        yield f"{name}:{','.join(pairs)}"


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def usage(name: str) -> str:
    """How a spec of this name is written, e.g. ``write fixed:gamma=<int>``; optional parameters are in brackets."""
    parts = []
    for key, parameter in POLICIES[name].settable.items():
        shown = f"{key}=<{type_name(parameter.annotation)}>"
        default = {"gamma_max": "the longest draft", "compression": "the target's"}.get(key, parameter.default)
        parts.append(shown if default is parameter.empty else f"[{shown}, by default {default}]")
    return f"write {name}:{','.join(parts)}" if parts else f"write {name}"


def with_objects(policies: Mapping[str, Policy], objects: Mapping[str, Policy]) -> dict[str, Policy]:
    """Named policies, and copies of a user's own, which so do not go on with what they learned before."""
    for name, policy in objects.items():
        if name in policies:
            raise DraftgaugeError(f"two policies are named {name!r}: give your own another name")
        if lacking := [part for part in ("reads", *INTERFACE) if not hasattr(policy, part)]:
            raise DraftgaugeError(f"the policy {name!r} lacks {', '.join(lacking)}: see draftgauge.Policy")
    return {**policies, **{name: deepcopy(policy) for name, policy in objects.items()}}
