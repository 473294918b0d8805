"""The words and table lines about policies that choose the draft length."""

from __future__ import annotations

import math
from dataclasses import dataclass

from draftgauge.report.choosing_views import ChoosingView, JudgedPolicy
from draftgauge.report.prose import tokens
from draftgauge.report.style import MISSING, column_decimals, compression_title, fixed

LEVEL = 0.05
MINUS = "\N{MINUS SIGN}"


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


def verdict(view: ChoosingView) -> str:
    """What the table comes to, in two sentences."""
    best = view.ahead
    low, gain, high = best.gain
    opening = (
        f"With the {compression_title(view.name)} target, {best.policy} comes to {_signed(gain)} ({_range(low, high)}) against always "
        f"drafting {tokens(view.best_gamma)}"
    )
    if low <= 0:
        return f"{opening}. The interval is not above zero: no policy shown is surely better than that fixed length."
    assert best.captured is not None  # what gains has somewhere to go
    captures = (
        f"{opening} and captures {_signed(best.captured[1], '0').lstrip('+')} of what knowing every outcome would bring"
    )
    if best.p_holm is not None and best.p_holm < LEVEL:
        return f"{captures}. The interval is above zero: choosing the length pays here."
    return (
        f"{captures}. The interval is above zero, but of as many policies as were tried one may come out so by chance."
    )


def optimum_gains(view: ChoosingView) -> str:
    """What knowing every outcome would bring over the best fixed length, over the ratios of the sweep."""
    return f"{_signed(min(view.optimum), '0')} to {_signed(max(view.optimum), '0')}"


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
        gain=_signed(policy.gain[1]),
        gain_interval=_range(policy.gain[0], policy.gain[2]),
        p_holm=_p_value(policy.p_holm),
        captured=MISSING if captured is None else _signed(captured[1], "0"),
        captured_interval="" if captured is None else _range(captured[0], captured[2], "0"),
    )


def _p_value(p: float | None) -> str:
    if p is None or p != p:
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _signed(share: float, decimals: str = "1") -> str:
    """A share in percent with its sign; zero has none."""
    shown = f"{share:+.{decimals}%}".replace("-", MINUS)
    return shown if any(digit in shown for digit in "123456789") else "0%"


def _range(low: float, high: float, decimals: str = "1") -> str:
    """An interval; empty where it is a point, as of a policy compared with itself."""
    if math.isclose(low, high, abs_tol=1e-9):
        return ""
    return f"{_signed(low, decimals)} to {_signed(high, decimals)}"
