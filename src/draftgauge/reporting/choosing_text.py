"""The table lines and the verdict about policies that choose the draft length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftgauge.reporting.choosing_views import ChoosingView, JudgedPolicy
from draftgauge.reporting.style import MISSING, column_decimals, fixed, signed

LEVEL = 0.05


@dataclass(frozen=True)
class JudgedLine:
    """One printed line of the table of judged policies; ``kind`` is "bound", "reference", "best" or empty."""

    policy: str
    description: str
    kind: str
    tokens_per_step: str
    tokens_per_second: str
    gain: str
    gain_interval: str
    p_holm: str
    captured: str
    captured_interval: str


def judged_lines(view: ChoosingView) -> tuple[JudgedLine, ...]:
    """The table of one compression, the policies by falling gain, the optimum last."""
    decimals = column_decimals([policy.tokens_per_second for policy in view.policies])
    *others, optimum = view.policies
    ordered = sorted(others, key=lambda policy: -policy.gain[1])
    return tuple(_line(policy, decimals, _kind(policy, view)) for policy in (*ordered, optimum))


@dataclass(frozen=True)
class Verdict:
    """What the table of one compression comes to: the policy with the largest gain.

    Attributes:
        compression: of the target.
        policy: its name for readers.
        low, gain, high: its gain over the best fixed length, with its interval.
        best_gamma: that length.
        captured: of the way to the hindsight optimum; NaN where there is none.
        outcome: "undecided" if the interval is not above zero, "ahead" if it is and so is the p-value adjusted for all
            policies, else "by chance": one of many.
    """

    compression: str
    policy: str
    low: float
    gain: float
    high: float
    best_gamma: int
    captured: float
    outcome: str


def verdict(view: ChoosingView) -> Verdict:
    """What the table comes to."""
    best = view.ahead
    low, gain, high = best.gain
    outcome = "undecided"
    if low > 0:
        outcome = "ahead" if best.p_holm is not None and best.p_holm < LEVEL else "by chance"
    captured = math.nan if best.captured is None else best.captured[1]
    return Verdict(view.name, best.policy, low, gain, high, view.best_gamma, captured, outcome)


def optimum_gains(view: ChoosingView) -> str:
    """What knowing every outcome would bring over the best fixed length, over the ratios of the sweep."""
    return f"{signed(min(view.optimum), '0')} to {signed(max(view.optimum), '0')}"


def _kind(policy: JudgedPolicy, view: ChoosingView) -> str:
    if policy is view.policies[-1]:
        return "bound"
    if policy.reference:
        return "reference"
    return "best" if policy == view.ahead else ""


def _line(policy: JudgedPolicy, decimals: int, kind: str) -> JudgedLine:
    captured = policy.captured
    return JudgedLine(
        policy=policy.policy,
        description=policy.description,
        kind=kind,
        tokens_per_step=fixed(policy.tokens_per_step, 3),
        tokens_per_second=fixed(policy.tokens_per_second, decimals),
        gain=signed(policy.gain[1]),
        gain_interval=_range(policy.gain[0], policy.gain[2]),
        p_holm=_p_value(policy.p_holm),
        captured=MISSING if captured is None else signed(captured[1], "0"),
        captured_interval="" if captured is None else _range(captured[0], captured[2], "0"),
    )


def _p_value(p: float | None) -> str:
    if p is None or p != p:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _range(low: float, high: float, decimals: str = "1") -> str:
    """An interval; empty where it is a point, as of a policy compared with itself."""
    if math.isclose(low, high, abs_tol=1e-9):
        return ""
    return f"{signed(low, decimals)} to {signed(high, decimals)}"
