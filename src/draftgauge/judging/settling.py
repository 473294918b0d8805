"""How much more settles what is not known of a run yet, and the command that records or measures it."""

from __future__ import annotations

import math
import re

LEVEL = 0.01  # closer to plain decoding nothing is worth knowing
MORE = "MORE.jsonl"
_VALUE = r"[= ](?:'[^']*'|[^\s'])+?"


def needed(have: int, speedup: float, low: float, high: float) -> int:
    """How many prompts tell a speed-up from plain decoding: its interval shrinks with their square root."""
    half = max(speedup - low, high - speedup)
    return max(have + 1, math.ceil(have * (half / max(abs(speedup - 1), LEVEL)) ** 2))


def with_more(command: str, have: int, need: int) -> str:
    """The command with its limits raised from ``have`` prompts to ``need``, or other prompts, and another folder."""
    limits = r"( --(?:limit|per-task|seconds)[= ])([\d.]+)"
    more, raised = re.subn(limits, lambda of: f"{of[1]}{math.ceil(float(of[2]) * need / have)}", command)
    if not raised:
        more = f"{re.sub(rf' --prompts{_VALUE}(?= |$)', '', more)} --prompts {MORE}"
    return re.sub(rf"( --out{_VALUE})/?(?= |$)", rf"\1-{need}", more)


def with_longer_costs(command: str) -> str:
    """The command measuring costs again, for longer than it did."""
    before = re.search(r" --cost-seconds[= ]([\d.]+)", command)
    kept = re.sub(r" --(?:measure|cost-seconds[= ]\S+)(?= |$)", "", command)
    return f"{kept} --measure --cost-seconds {max(60.0, 2 * float(before[1]) if before else 0.0):g}"
