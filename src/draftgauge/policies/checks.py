"""Checks of what a policy's spec can set, with one wording for all policies."""

from __future__ import annotations

from collections.abc import Sequence

from draftgauge.core.errors import DraftgaugeError
from draftgauge.traces.costs import CostCurve


def require_costs(name: str, costs: CostCurve | None) -> CostCurve:
    if costs is None:
        raise DraftgaugeError(
            f"policy {name} weighs the cost of a step: give the pair's cost curve (`draftgauge profile` measures it)"
        )
    return costs


def check_threshold(name: str, threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise DraftgaugeError(f"policy {name}: threshold must be above 0 and at most 1, not {threshold}")


def check_share(name: str, key: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise DraftgaugeError(f"policy {name}: {key} must be 0 to 1, not {value}")


def check_positive(name: str, key: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise DraftgaugeError(f"policy {name}: {key} must be above 0, not {value}")


def check_tokens(name: str, key: str, tokens: int, least: int = 1) -> None:
    if tokens < least:
        raise DraftgaugeError(f"policy {name}: {key} must be at least {least}, not {tokens}")


def check_shares(name: str, key: str, values: Sequence[float], count: int) -> None:
    """Raise ``DraftgaugeError`` unless there are so many fitted values, each from 0 to 1."""
    if len(values) != count:
        raise DraftgaugeError(f"policy {name}: {key} must have {count} values, one for each depth, not {len(values)}")
    if not all(0 <= value <= 1 for value in values):
        raise DraftgaugeError(f"policy {name}: {key} must be from 0 to 1, not {list(values)}")


def check_lengths(name: str, key: str, lengths: Sequence[int], gamma_max: int, least: int = 1) -> tuple[int, ...]:
    if min(lengths) < least:
        raise DraftgaugeError(f"policy {name}: {key} must be lengths of at least {least}, not {min(lengths)}")
    return tuple(sorted({min(length, gamma_max) for length in lengths}))
