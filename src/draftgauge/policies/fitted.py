"""Policies that were fitted, as numbers in a JSON file: what ``draftgauge fit`` writes and ``--policy FILE`` reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from draftgauge.core.artefacts import Artefact
from draftgauge.core.config import from_mapping, to_mapping
from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies.base import Policy
from draftgauge.traces.costs import CostCurve

FITTED_SUFFIX = ".json"
FITTED_HERE = ", fitted"  # behind the name of a policy with numbers fitted for a comparison, of which there is no file
LARGEST = 1e4  # of a fitted number, either way
FILE = Artefact("draftgauge-policy", 2, "fitted policy", "fit it with `draftgauge fit RUN --policy NAME --out FILE`")

Build = Callable[[Mapping[str, Any], int, CostCurve | None, str], Policy]
"""Makes a policy from ``parameters``, the longest draft, the costs (or None) and the target's compression (or "")."""

FITTED: dict[str, tuple[Build, tuple[str, ...]]] = {}
"""The kinds of fitted policies, by name: how each is made, and the signals that its numbers refer to."""


@dataclass(frozen=True)
class FittedPolicy:
    """A fitted policy on disk.

    Attributes:
        policy: its kind, a name in :data:`FITTED`.
        signals: the vocabulary of signals that its numbers refer to, in order.
        provenance: how: command, trace, compression, splits, scores, for the reader.
        trained_on: identifiers of the prompts it was fitted on, as ``task/identifier``.
    """

    policy: str
    gamma_max: int
    signals: tuple[str, ...]
    parameters: Mapping[str, Any]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    trained_on: tuple[str, ...] = ()


def register_fitted(policy: str, signals: tuple[str, ...]) -> Callable[[Build], Build]:
    """Decorator of the function that makes a kind of fitted policy from its numbers, which refer to these signals."""

    def add(build: Build) -> Build:
        assert policy not in FITTED, f"fitted policy {policy} is registered twice"
        FITTED[policy] = build, signals
        return build

    return add


def fitted_policy(fitted: FittedPolicy, gamma_max: int, costs: CostCurve | None, compression: str = "") -> Policy:
    """A new policy from its numbers; ``compression`` is the target's, by default what the costs say."""
    build, wanted = FITTED[fitted.policy]
    if fitted.signals != wanted:
        raise DraftgaugeError(
            f"policy {fitted.policy} was fitted on the signals {', '.join(fitted.signals) or 'none'}; "
            f"this draftgauge has {', '.join(wanted)}: fit it again"
        )
    if fitted.gamma_max != gamma_max:
        raise DraftgaugeError(
            f"policy {fitted.policy} was fitted for gamma_max {fitted.gamma_max}, "
            f"the longest draft here is {gamma_max}: run with --gamma-max {fitted.gamma_max}, or fit it on such a trace"
        )
    _check_numbers(fitted.policy, "parameters", fitted.parameters)
    return build(fitted.parameters, gamma_max, costs, compression or ("" if costs is None else costs.compression))


def _check_numbers(policy: str, key: str, value: Any) -> None:
    """Raise ``DraftgaugeError`` naming the first number that no fit finds."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _check_numbers(policy, f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_numbers(policy, key, inner)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise DraftgaugeError(
            f"policy {policy}: {key} must be numbers from -{LARGEST:g} to {LARGEST:g}, not {value}: fit it again"
        )


def save_fitted(fitted: FittedPolicy, path: Path) -> None:
    FILE.write(path, to_mapping(fitted))


def load_fitted(path: Path) -> FittedPolicy:
    return _load_fitted(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=16)
def _load_fitted(path: Path, changed: int) -> FittedPolicy:
    content = FILE.read(path)
    try:
        fitted = from_mapping(FittedPolicy, content, "fitted policy")
    except DraftgaugeError as error:
        raise DraftgaugeError(f"{path}: {error}; {FILE.remedy}") from error
    if fitted.policy not in FITTED:
        raise DraftgaugeError(
            f"{path} is of policy {fitted.policy!r}, which this draftgauge does not know; known: {', '.join(FITTED)}"
        )
    return fitted


@cache
def bundled_policy(name: str) -> FittedPolicy:
    """A policy that comes with the package, fitted on the training prompts of the bundled pair."""
    return load_fitted(Path(__file__).parent / "bundled" / f"{name}{FITTED_SUFFIX}")


def is_fitted(path: Path) -> bool:
    return FILE.is_one(path)
