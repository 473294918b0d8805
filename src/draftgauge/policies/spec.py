"""Policies by name, and a policy as command line, requests and rows write it: ``fixed:4``, ``stopping``, a fitted file.

Each policy registers itself in its own file.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from draftgauge.core.config import convert, type_name
from draftgauge.core.errors import DraftgaugeError, meant
from draftgauge.core.parts import UNCOMPRESSED, held_as
from draftgauge.policies.base import Policy, require_costs
from draftgauge.policies.fitted import FITTED_HERE, FITTED_SUFFIX, FittedPolicy, fitted_policy, is_fitted, load_fitted
from draftgauge.traces.costs import CostCurve

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


# Rules for a whole batch, by name: whether they learn chances of acceptance, or take the drafter's confidences.
ADAPTIVE, ADAPTIVE_033, SGLANG_TIERS = "adaptive-verification", "adaptive-verification-0.33", "sglang-tiers"
WHOLE_BATCH = (ADAPTIVE, ADAPTIVE_033, "confidence-scheduled", SGLANG_TIERS)  # rules for all requests of a batch


@dataclass(frozen=True)
class PolicySpec:
    """A policy's text, read once. :meth:`of` takes any name that rows hold, :meth:`parse` only what can be made.

    Attributes:
        text: as it is written today, e.g. ``hf-confidence:threshold=0.4``; a path of a fitted file.
    """

    text: str

    @classmethod
    def of(cls, text: str) -> PolicySpec:
        """The policy of a text, which may also be a user's own name, ``plain`` or a bound."""
        # Earlier versions wrote ``none`` for ``no-draft`` and ``fixed:gamma=4`` for ``fixed:4``.
        name, colon, values = text.replace(f"{FIXED}gamma=", FIXED).partition(":")
        return cls((NO_DRAFT if name == "none" else name) + colon + values)

    @classmethod
    def fixed(cls, gamma: int) -> PolicySpec:
        return cls(f"{FIXED}{gamma}" if gamma else NO_DRAFT)

    @classmethod
    def parse(cls, text: str) -> PolicySpec:
        """The policy of a text, checked.

        Raises:
            DraftgaugeError: for an unknown policy, a parameter it lacks or cannot take, a file without a fitted policy,
                or a rule for whole batches.
        """
        policy = cls.of(text)
        if policy.text in WHOLE_BATCH:
            raise DraftgaugeError(f"{text} is for batches: profile with --batches 1,8, then replay with --batches 8")
        if policy.fitted is None:
            _ = policy.arguments
        return policy

    def __str__(self) -> str:
        return self.text

    @property
    def of_file(self) -> bool:
        return self.text.endswith(FITTED_SUFFIX)

    @property
    def is_fitted(self) -> bool:
        """Whether its numbers were fitted: in a file, or for the comparison that names it."""
        return self.text.endswith((FITTED_SUFFIX, FITTED_HERE))

    @cached_property
    def fitted(self) -> FittedPolicy | None:
        """The numbers of a fitted file; None where the text names none."""
        return load_fitted(Path(self.text)) if self.of_file else None

    @cached_property
    def name(self) -> str:
        """Of the rule, without its arguments; a server may be named by a file that does not lie here."""
        if self.of_file:
            return load_fitted(Path(self.text)).policy if is_fitted(Path(self.text)) else self.text
        return self.text.removesuffix(FITTED_HERE).partition(":")[0]

    @property
    def entry(self) -> PolicyEntry | None:
        """What is said of the rule; None if none of that name is registered."""
        return POLICIES.get(self.name)

    @property
    def description(self) -> str:
        return "" if self.entry is None else self.entry.description

    @property
    def complexity(self) -> float:
        """How many of its numbers are tuned or fitted; infinite for a user's own."""
        return math.inf if self.entry is None else self.entry.complexity

    @property
    def weighs_cost(self) -> bool:
        return self.entry is None or "costs" in self.entry.parameters

    @property
    def length(self) -> int | None:
        """Tokens drafted by ``fixed:N``, 0 by ``no-draft``; None of rules that choose, and of ``fixed`` for all."""
        if self.text == NO_DRAFT:
            return 0
        return self.arguments.get("gamma") if self.text.startswith(FIXED) else None

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """What follows the name (``name:key=value,key=value``), converted by the annotations of the factory.

        The first value may come without its key (``fixed:4``). A piece without ``=`` after a keyed one continues its
        value (``sglang-adaptive:candidates=1,2,4``).
        """
        name, colon, rest = self.text.partition(":")
        others = [part for part in self.text.split(",")[1:] if part.partition(":")[0] in POLICIES]
        if others:
            raise DraftgaugeError(f"{self.text!r} names more than one policy: give {others[0]} by itself")
        if name not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise DraftgaugeError(f"unknown policy {name!r}; {meant(name, POLICIES)}known: {known}")
        if colon and not rest:
            raise DraftgaugeError(f"{self.text!r}: nothing follows the colon; {usage(name)}")
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
                raise DraftgaugeError(f"{self.text!r} gives {key} twice")
            arguments[key] = convert(text, parameters[key].annotation, f"policy {name}: {key}")
        return arguments

    def make(self, gamma_max: int, costs: CostCurve | None = None, compression: str | None = None) -> Policy:
        """A new one, see :func:`make_policy`; ``compression`` is the target's, by default what the costs say."""
        if self.fitted is not None:
            try:
                return fitted_policy(self.fitted, gamma_max, costs, compression or "")
            except DraftgaugeError as error:
                raise DraftgaugeError(f"{self.text}: {error}") from error
        name, arguments, entry = self.name, self.arguments, POLICIES[self.name]
        lower = arguments.get("gamma_max", gamma_max)
        if not 1 <= lower <= gamma_max:
            raise DraftgaugeError(
                f"policy {name}: gamma_max must be 1 to {gamma_max}, the longest draft here, not {lower}"
            )
        if self.weighs_cost:
            require_costs(name, costs)
        if compression is None:
            compression = UNCOMPRESSED if costs is None else held_as(costs.compression, costs.engine)
        known = {"gamma_max": gamma_max, "costs": costs, "compression": compression}
        given = {key: value for key, value in known.items() if key in entry.parameters} | dict(arguments)
        missing = [key for key, each in entry.parameters.items() if each.default is each.empty and key not in given]
        if missing:
            raise DraftgaugeError(f"policy {name} needs {', '.join(missing)}: {usage(name)}")
        return entry.factory(**given)


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
        DraftgaugeError: for an unknown policy, a parameter it lacks or cannot take, or a policy that weighs cost
            without a cost curve.
    """
    if gamma_max < 1:
        raise DraftgaugeError(f"gamma_max is the longest draft and must be at least 1, not {gamma_max}")
    return PolicySpec.of(spec).make(gamma_max, costs)


def read_policies(texts: Iterable[str], gamma_max: int | None = None) -> tuple[PolicySpec, ...]:
    """The policies of these texts, each once; with ``gamma_max`` bare ``fixed`` is every length up to it."""
    policies: dict[str, PolicySpec] = {}
    for policy in map(PolicySpec.parse, texts):
        every = range(1, gamma_max + 1) if gamma_max is not None and policy.text == "fixed" else ()
        policies |= {each.text: each for each in (map(PolicySpec.fixed, every) if every else [policy])}
    return tuple(policies.values())
