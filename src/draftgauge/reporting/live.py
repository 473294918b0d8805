"""Rows of live measurements, checked and typed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.core.errors import DraftgaugeError
from draftgauge.policies import POLICIES

REQUIRED = ("policy", "compression", "task", "tokens_per_second", "mismatches")
"""What every live measurement has; rows of a replay have no mismatches, and must not pass for measured ones."""


@dataclass(frozen=True)
class LiveRow:
    """One policy or baseline on one task, measured.

    Attributes:
        policy: its name; every fixed length is called ``fixed:<gamma>``.
        compression, task: what it ran on; the task is ``all`` for all prompts together.
        gamma: the draft length of a fixed one, else None.
        tokens_per_step: None where steps are not known.
        tokens_per_second: committed tokens per second.
        ratio_to_plain, low, high: speed over plain decoding, measured beside it, with the ends of its interval.
        mismatches: greedy positions that differ from plain decoding.
    """

    policy: str
    compression: str
    task: str
    gamma: int | None
    tokens_per_step: float | None
    tokens_per_second: float | None
    ratio_to_plain: float | None
    low: float | None
    high: float | None
    mismatches: int | None


def live_rows(rows: Sequence[Mapping[str, Any]]) -> tuple[LiveRow, ...]:
    """Read the rows of ``draftgauge bench``; keys beyond those of :class:`LiveRow` are not looked at.

    Raises:
        DraftgaugeError: if a row lacks a key that every measurement has, or names an impossible fixed length.
    """
    return tuple(_live_row(row) for row in rows)


def _live_row(row: Mapping[str, Any]) -> LiveRow:
    missing = [key for key in REQUIRED if key not in row]
    if missing:
        raise DraftgaugeError(
            f"a row of the live measurements lacks {', '.join(missing)}; use the JSON of `draftgauge bench`"
        )
    gamma = fixed_gamma(row["policy"])
    return LiveRow(
        policy=row["policy"] if gamma is None else f"fixed:{gamma}",
        compression=row["compression"],
        task=row["task"],
        gamma=gamma,
        tokens_per_step=_finite(row, "tokens_per_step"),
        tokens_per_second=_finite(row, "tokens_per_second"),
        ratio_to_plain=_finite(row, "ratio_to_plain"),
        low=_finite(row, "ratio_to_plain_low"),
        high=_finite(row, "ratio_to_plain_high"),
        mismatches=row["mismatches"],
    )


def _finite(row: Mapping[str, Any], key: str) -> float | None:
    """A figure of a row; None where it is missing or, as for a prompt too short to time, not a number."""
    value: float | None = row.get(key)
    return None if value is None or not math.isfinite(value) else value


def fixed_gamma(policy: str) -> int | None:
    """The draft length of ``fixed:4`` or ``fixed:gamma=4``; None for any other policy or baseline."""
    if policy.partition(":")[0] != "fixed":
        return None
    gamma: int | None = POLICIES.parse(policy)[1].get("gamma")
    return gamma


def is_policy(name: str) -> bool:
    """Whether a measured name is a policy, which can be replayed; baselines cannot."""
    return name.partition(":")[0] in POLICIES
