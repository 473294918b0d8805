"""The policies by name: what ``--policy`` and the Python API take. Each policy registers itself in its own file."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from draftgauge.core.compressions import UNCOMPRESSED, held_as
from draftgauge.core.config import convert, type_name
from draftgauge.core.errors import DraftgaugeError, meant
from draftgauge.policies.base import Policy
from draftgauge.policies.checks import require_costs
from draftgauge.policies.fitted import FITTED_HERE, FITTED_SUFFIX, is_fitted, load_fitted, policy_of_file
from draftgauge.traces.costs import CostCurve

NO_DRAFT = "no-draft"
FIXED = "fixed:"

Factory = TypeVar("Factory", bound=Callable[..., Policy])


@dataclass(frozen=True)
class PolicyEntry:
    """A policy's factory, and what is said of it.

    Attributes:
        factory: its parameters are those of a spec, and ``costs``, which the caller alone gives, as ``gamma_max`` and
            the target's ``compression`` where a spec leaves them out.
        grid: values to try for each of its parameters when it is tuned; empty if there is nothing to tune.
        compared: whether it is included in comparisons that name no policy.
        complexity: how many numbers of it are tuned or fitted; of policies that are level the least complex one is
            recommended.
    """

    factory: Callable[..., Policy]
    description: str
    grid: Mapping[str, tuple[Any, ...]]
    compared: bool
    complexity: int

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.factory, eval_str=True).parameters)

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
        POLICIES[name] = PolicyEntry(factory, description, dict(grid or {}), compared, numbers)
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
    return parse_spec(spec)[1].get("gamma") if spec.startswith(FIXED) else None


def entry_of(spec: str) -> PolicyEntry | None:
    """What is said of the policy of a spec; None if none of that name is registered."""
    return POLICIES.get(current_name(spec).partition(":")[0])


def describe_policy(spec: str) -> str:
    """What the policy of a spec does; empty if none of that name is registered."""
    entry = entry_of(spec)
    return "" if entry is None else entry.description


def compared_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in POLICIES.items() if entry.compared)


def tunable_policies() -> tuple[str, ...]:
    return tuple(name for name, entry in POLICIES.items() if entry.grid)


def grid_specs(name: str) -> Iterator[str]:
    grid = POLICIES[name].grid
    for values in product(*grid.values()):
        pairs = (f"{key}={_written(value)}" for key, value in zip(grid, values, strict=True))
        yield f"{name}:{','.join(pairs)}"


def complexity_of(spec: str) -> float:
    """How many numbers of a policy are tuned or fitted; infinite for a user's own."""
    there = spec.endswith(FITTED_SUFFIX) and is_fitted(Path(spec))  # a server may be named by a file that lies with it
    entry = entry_of(load_fitted(Path(spec)).policy if there else spec.removesuffix(FITTED_HERE))
    return math.inf if entry is None else entry.complexity


def weighs_cost(spec: str) -> bool:
    return "costs" in POLICIES[spec.partition(":")[0]].parameters


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_spec(spec: str) -> tuple[str, dict[str, Any]]:
    """The name of a spec ``name`` or ``name:key=value,key=value``, and its arguments, converted by the annotations of
    the factory's parameters.

    The first value may come without its key (``fixed:4``); a piece without ``=`` after a keyed one continues its value
    (``sglang-adaptive:candidates=1,2,4``).
    """
    name, colon, rest = spec.partition(":")
    others = [part for part in spec.split(",")[1:] if part.partition(":")[0] in POLICIES]
    if others:
        raise DraftgaugeError(f"{spec!r} names more than one policy: give {others[0]} by itself")
    if name not in POLICIES:
        raise DraftgaugeError(f"unknown policy {name!r}; {meant(name, POLICIES)}known: {', '.join(sorted(POLICIES))}")
    if colon and not rest:
        raise DraftgaugeError(f"{spec!r}: nothing follows the colon; {usage(name)}")
    parameters = POLICIES[name].settable
    pairs: list[tuple[str, str]] = []  # ``4,window=8`` -> (first, "4"), ("window", "8")
    for piece in rest.split(",") if rest else ():
        key, equals, value = piece.partition("=")
        if equals:
            pairs.append((key.strip(), value.strip()))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]},{piece.strip()}")
        else:
            pairs.append((next(iter(parameters), ""), piece.strip()))
    arguments: dict[str, Any] = {}
    for key, text in pairs:
        if key not in parameters:
            problem = f"has no parameter {key!r}" if parameters else "takes no parameters"
            raise DraftgaugeError(f"policy {name} {problem}: {usage(name)}")
        if key in arguments:
            raise DraftgaugeError(f"{spec!r} gives {key} twice")
        arguments[key] = convert(text, parameters[key].annotation, f"policy {name}: {key}")
    return name, arguments


def usage(name: str) -> str:
    """How a spec of this name is written, e.g. ``write fixed:gamma=<int>``; optional parameters are in brackets."""
    parts = []
    for key, parameter in POLICIES[name].settable.items():
        shown = f"{key}=<{type_name(parameter.annotation)}>"
        default = {"gamma_max": "the longest draft", "compression": "the target's"}.get(key, parameter.default)
        parts.append(shown if default is parameter.empty else f"[{shown}, by default {default}]")
    return f"write {name}:{','.join(parts)}" if parts else f"write {name}"


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
    return make_parsed(*parse_spec(current_name(spec)), gamma_max, costs)


def make_parsed(
    name: str, arguments: Mapping[str, Any], gamma_max: int, costs: CostCurve | None, compression: str | None = None
) -> Policy:
    lower = arguments.get("gamma_max", gamma_max)
    if not 1 <= lower <= gamma_max:
        raise DraftgaugeError(f"policy {name}: gamma_max must be 1 to {gamma_max}, the longest draft here, not {lower}")
    if weighs_cost(name):
        require_costs(name, costs)
    entry = POLICIES[name]
    if compression is None:
        compression = UNCOMPRESSED if costs is None else held_as(costs.compression, costs.engine)
    known = {"gamma_max": gamma_max, "costs": costs, "compression": compression}
    given = {key: value for key, value in known.items() if key in entry.parameters} | dict(arguments)
    missing = [key for key, each in entry.parameters.items() if each.default is each.empty and key not in given]
    if missing:
        raise DraftgaugeError(f"policy {name} needs {', '.join(missing)}: {usage(name)}")
    return entry.factory(**given)


def with_objects(policies: Mapping[str, Policy], objects: Mapping[str, Policy]) -> dict[str, Policy]:
    """Named policies, and copies of a user's own, which so do not go on with what they learned before."""
    for name, policy in objects.items():
        if name in policies:
            raise DraftgaugeError(f"two policies are named {name!r}: give your own another name")
        if lacking := [part for part in ("reads", *INTERFACE) if not hasattr(policy, part)]:
            raise DraftgaugeError(f"the policy {name!r} lacks {', '.join(lacking)}: see draftgauge.Policy")
    return {**policies, **{name: deepcopy(policy) for name, policy in objects.items()}}
