"""The policies by name: what ``--policy`` and the Python API take. Each policy registers itself in its own file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from draftgauge.core.errors import DraftgaugeError
from draftgauge.core.registry import Registry
from draftgauge.policies.base import Policy
from draftgauge.policies.checks import require_costs
from draftgauge.policies.fitted import FITTED_SUFFIX, load_fitted, policy_of_file
from draftgauge.traces.costs import CostCurve

POLICIES: Registry[Policy] = Registry("policy", supplied=("costs",), defaults={"gamma_max": "the longest draft"})
"""Factories whose parameters are those of a spec; each takes ``gamma_max`` and ``costs``, which the caller knows, by
these names.
"""

NO_DRAFT = "no-draft"
FIXED = "fixed:"

Factory = TypeVar("Factory", bound=Callable[..., Policy])


@dataclass(frozen=True)
class PolicyEntry:
    """What is said of a policy beside its factory.

    Attributes:
        description: what it does, in a line.
        variants: what it does instead where its spec holds a parameter, e.g. ``{"adaptive=true": "..."}``.
        grid: values to try for each of its parameters when it is tuned; empty if there is nothing to tune.
        compared: whether it is included in comparisons that name no policy.
        complexity: how many numbers of it are tuned or fitted; of policies that are level the least complex one is
            recommended.
    """

    description: str
    variants: Mapping[str, str]
    grid: Mapping[str, tuple[Any, ...]]
    compared: bool
    complexity: int


_ENTRIES: dict[str, PolicyEntry] = {}


INTERFACE = ("reset", "limit", "keep_drafting", "observe")


def register_policy(
    name: str,
    description: str,
    *,
    variants: Mapping[str, str] | None = None,
    grid: Mapping[str, tuple[Any, ...]] | None = None,
    compared: bool = False,
    complexity: int | None = None,
) -> Callable[[Factory], Factory]:
    """Decorator of a policy's factory, see :class:`PolicyEntry`; ``complexity`` is the number of ``grid`` parameters by
    default.
    """

    def add(factory: Factory) -> Factory:
        POLICIES.register(name)(factory)
        numbers = len(grid or {}) if complexity is None else complexity
        _ENTRIES[name] = PolicyEntry(description, dict(variants or {}), dict(grid or {}), compared, numbers)
        return factory

    return add


def current_name(spec: str) -> str:
    """The spec as it is written today: ``no-draft`` was ``none``, and ``fixed:gamma=4`` is ``fixed:4``."""
    name, separator, values = spec.replace(f"{FIXED}gamma=", FIXED).partition(":")
    return (NO_DRAFT if name == "none" else name) + separator + values


def fixed_name(gamma: int) -> str:
    return f"{FIXED}{gamma}" if gamma else NO_DRAFT


def fixed_length(spec: str) -> int | None:
    """The length of ``no-draft`` (0) or ``fixed:N``; None of other settings."""
    if spec == NO_DRAFT:
        return 0
    gamma: int | None = POLICIES.parse(spec)[1].get("gamma") if spec.startswith(FIXED) else None
    return gamma


def entry_of(spec: str) -> PolicyEntry | None:
    """What is said of the policy of a spec; None if none of that name is registered."""
    return _ENTRIES.get(current_name(spec).partition(":")[0])


def describe_policy(spec: str) -> str:
    """What the policy of a spec does; empty if none of that name is registered."""
    entry = entry_of(spec)
    if entry is None:
        return ""
    return next((text for key, text in entry.variants.items() if key in spec), entry.description)


def compared_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in _ENTRIES.items() if entry.compared)


def tunable_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in _ENTRIES.items() if entry.grid)


def grid_specs(name: str) -> Iterator[str]:
    grid = _ENTRIES[name].grid
    for values in product(*grid.values()):
        pairs = (f"{key}={_written(value)}" for key, value in zip(grid, values, strict=True))
        yield f"{name}:{','.join(pairs)}"


def complexity_of(spec: str) -> float:
    """How many numbers of a policy are tuned or fitted; infinite for a user's own."""
    entry = entry_of(load_fitted(Path(spec)).policy if spec.endswith(FITTED_SUFFIX) else spec)
    return math.inf if entry is None else entry.complexity


def weighs_cost(spec: str) -> bool:
    return POLICIES.takes(spec.partition(":")[0], "costs")


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def make_policy(spec: str, gamma_max: int, costs: CostCurve | None = None) -> Policy:
    """A new policy from its spec, e.g. ``no-draft``, ``fixed:4``, ``hf-confidence:threshold=0.4,adaptive=true``, or
    from a fitted file.

    Policies hold state, some of it across prompts: make a new one for every run and replay.

    Args:
        spec: a name in :data:`POLICIES`, then its parameters; or the path of a file that ``draftgauge fit`` wrote
            (ending ``.json``).
        gamma_max: the longest draft possible; no policy's ``limit`` exceeds it. A spec may set a lower one
            (``hf-heuristic:gamma_max=8``).
        costs: of the pair on this machine, for the policies that weigh cost.

    Raises:
        DraftgaugeError: for an unknown policy (naming the known ones), a parameter it does not have or cannot take, or
            a policy that weighs cost without a cost curve.
    """
    if gamma_max < 1:
        raise DraftgaugeError(f"gamma_max is the longest draft and must be at least 1, not {gamma_max}")
    if spec.endswith(FITTED_SUFFIX):
        return policy_of_file(Path(spec), gamma_max, costs)
    return make_parsed(*POLICIES.parse(current_name(spec)), gamma_max, costs)


def make_parsed(name: str, arguments: Mapping[str, Any], gamma_max: int, costs: CostCurve | None) -> Policy:
    lower = arguments.get("gamma_max", gamma_max)
    if not 1 <= lower <= gamma_max:
        raise DraftgaugeError(f"policy {name}: gamma_max must be 1 to {gamma_max}, the longest draft here, not {lower}")
    if weighs_cost(name):
        require_costs(name, costs)
    return POLICIES.create(name, arguments, gamma_max=gamma_max, costs=costs)


def with_objects(policies: Mapping[str, Policy], objects: Mapping[str, Policy]) -> dict[str, Policy]:
    """Named policies, and copies of a user's own, which so do not go on with what they learned before."""
    for name, policy in objects.items():
        if name in policies:
            raise DraftgaugeError(f"two policies are named {name!r}: give your own another name")
        if lacking := [part for part in ("reads", *INTERFACE) if not hasattr(policy, part)]:
            raise DraftgaugeError(f"the policy {name!r} lacks {', '.join(lacking)}: see draftgauge.Policy")
    return {**policies, **{name: deepcopy(policy) for name, policy in objects.items()}}
