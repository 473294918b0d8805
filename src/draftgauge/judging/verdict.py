"""The one recommendation of a recorded run: which setting, what it gains, and whether that is known yet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftgauge.judging.speed import Speed
from draftgauge.judging.splits import MIN_PROMPTS
from draftgauge.judging.statistics.bootstrap import TEST_RESAMPLES
from draftgauge.policies.spec import FIXED, NO_DRAFT, PolicySpec

NOT_DRAFTING = (NO_DRAFT, "plain")
LOOKUP = "lookup"
WORTH_KNOWING = 0.01  # a speed closer to plain decoding settles nothing
MORE = "MORE.jsonl"
_VALUE = r"[= ](?:'[^']*'|[^\s'])+?"


@dataclass(frozen=True)
class Verdict:
    """What to do with a pair on one machine or engine.

    Attributes:
        setting: the policy to use; ``no-draft`` or ``plain`` where drafting does not pay.
        speedup, low, high: modelled speed over plain decoding with its 95% interval by prompt (None of one prompt).
            Where the setting is not to draft, it is that of the fastest policy that drafts, ``drafting``.
        prompts: how many this stands on; of a server's counters how many drafts, as ``unit`` says.
        doubt: why the costs are not to be trusted; empty if they are.
        command: that recorded the run, or decoded.
        measure: how to measure the costs, in words; empty if by ``command``.
        text_only: whether the setting takes no token of the draft model.
        lookup: speed-up of looking tokens up alone (policy ``lookup``), where it was tried.
        fastest, top: the policy of the highest speed-up, and that one, where it is not the setting.
    """

    setting: str
    drafting: str
    speedup: float
    low: float | None
    high: float | None
    prompts: int
    doubt: str = ""
    command: str = ""
    unit: str = "prompts"
    live: bool = False
    measure: str = ""
    text_only: bool = False
    lookup: float | None = None
    fastest: str = ""
    top: float = 0.0

    @property
    def speculate(self) -> bool:
        return self.setting not in NOT_DRAFTING

    @property
    def unknown(self) -> str:
        """Why this is not known yet, and the command that would settle it; empty if it is known."""
        typed = self.command.startswith("draftgauge ")  # else Python's
        if self.doubt:
            if self.measure:
                settled = f"To settle it, with nothing else on the machine, {self.measure}"
                return f"the costs are not to be trusted, {self.doubt}. {settled}"
            again, enough = _with_longer_costs(self.command), ""
            if self.prompts < MIN_PROMPTS:  # else this would be said next
                again, enough = _with_more(again, self.prompts, MIN_PROMPTS), f", on {MIN_PROMPTS} prompts,"
            costs = "What would settle it: costs measured anew (measure, cost_seconds 60)"
            settled = (f"To settle it, run `{again}`" if typed else costs) + enough
            return f"the costs are not to be trusted, {self.doubt}. {settled} with nothing else on the machine"
        least, have, unit = MIN_PROMPTS, self.prompts, self.unit
        if level := self.low is not None and self.high is not None and self.low <= 1 <= self.high:
            least = max(least, _needed(have, self.speedup, self.low or 0.0, self.high or 0.0))
        if have < MIN_PROMPTS:
            reason = f"{have} of at least {MIN_PROMPTS} {unit} are {'decoded' if self.live else 'recorded'}"
        elif self.low is None or self.high is None:
            reason, have, unit = "the prompts are turns of one conversation", 1, "conversations"
        elif level and self.drafting:
            reason = "the interval reaches both sides of plain decoding"
        else:
            return ""
        if not typed:
            return f"{reason}. What would settle it: about {least} {unit}"
        again = _with_more(self.command, have, least)
        of_them = f", where {MORE} has as many" if MORE in again else ""
        return f"{reason}. To settle it, {'decode' if self.live else 'record'} about {least} {unit}: `{again}`{of_them}"

    def __str__(self) -> str:
        interval = "" if self.low is None else f" (95%: {self.low:.2f}x to {self.high:.2f}x)"
        how = "measured" if self.live else "modelled"
        unit = self.unit.replace("s", "", 1) if self.prompts == 1 else self.unit
        figure = f"{self.speedup:.2f}x plain decoding{interval}, {how} on {self.prompts} {unit}"
        if self.speculate:
            known = f"Draft with {self.setting}: {figure}."
            if self.fastest.startswith(FIXED):
                known += f" Of all lengths tried here {self.fastest} happens to be faster ({self.top:.2f}x)."
            elif self.fastest:
                known += f" It is level with the fastest, {self.fastest} ({self.top:.2f}x), and simpler."
            if self.text_only:
                known += " All that it proposes is looked up in the text; the draft model is not used."
            if self.lookup is not None and self.setting != LOOKUP:
                known += f" The rule {LOOKUP}, without a draft model, reaches {self.lookup:.2f}x."
        elif self.drafting:
            reaches = "reaches" if round(self.speedup, 2) < 1 else "is level with not drafting, at"
            known = f"Do not draft: the fastest policy, {self.drafting}, {reaches} {figure}."
        else:
            known = "Do not draft: no policy that drafts was tried."
        return f"Not known yet: {self.unknown}. So far: {known}" if self.unknown else known


def verdict_of(
    rows: Sequence[Mapping[str, Any]], command: str = "", live: bool = False, unit: str = "prompts", measure: str = ""
) -> Verdict:
    """The verdict on the rows of one run over all its prompts.

    Args:
        rows: with ``policy``, ``ratio_to_plain`` with ``_low`` and ``_high``, ``recommended`` and ``prompts``, as
            :func:`~draftgauge.judging.evaluate.evaluate` makes them; ``cost_doubt`` where costs were modelled.
        command, live, unit, measure: as of :class:`Verdict`.
    """
    chosen = next(row for row in rows if row["recommended"])
    others = [r for r in rows if r["policy"] not in NOT_DRAFTING and not r["policy"].startswith("hindsight")]
    fastest = max(others, key=lambda row: row["ratio_to_plain"], default=chosen)
    shown = fastest if chosen["policy"] in NOT_DRAFTING else chosen
    drafting = "" if shown["policy"] in NOT_DRAFTING else shown["policy"]
    low, high = (shown.get(f"ratio_to_plain_{end}") for end in ("low", "high"))
    if low is None or low != low or shown["prompts"] == 1:
        low = high = None
    return Verdict(
        chosen["policy"],
        drafting,
        shown["ratio_to_plain"],
        low,
        high,
        chosen["prompts"],
        chosen.get("cost_doubt") or "",
        command,
        unit,
        live,
        measure,
        text_only=bool(chosen.get("appended_per_step")) and not chosen.get("drafted_per_step"),
        lookup=next((row["ratio_to_plain"] for row in rows if row["policy"] == LOOKUP), None),
        fastest=fastest["policy"] if fastest["ratio_to_plain"] > chosen["ratio_to_plain"] else "",
        top=fastest["ratio_to_plain"],
    )


def say_verdict(rows: Sequence[dict[str, Any]], command: str, live: bool = False) -> None:
    """Add the ``verdict``, in words, to the recommended one of the rows over all prompts."""
    next(row for row in rows if row["recommended"])["verdict"] = str(verdict_of(rows, command, live))


def recommend(
    rows: Iterable[dict[str, Any]], speeds: Mapping[str, Speed], best_fixed: str, resamples: int = TEST_RESAMPLES
) -> None:
    """Say in every row whether its policy is the :func:`recommended` one; none is where there are no speeds."""
    chosen = recommended(speeds, best_fixed, resamples) if speeds else None
    for row in rows:
        row["recommended"] = row["policy"] == chosen


def recommended(speeds: Mapping[str, Speed], best_fixed: str, resamples: int = TEST_RESAMPLES) -> str:
    """The name of the simplest policy that is level with the fastest one (:attr:`Ratio.level`): of the fewest tuned or
    fitted numbers (:class:`~draftgauge.policies.spec.PolicySpec`). Of equals it is one with the numbers it is shipped
    with, which needs no fit, then the faster one.

    Args:
        speeds: on the same prompts, by the spec of the policy.
        best_fixed: the best fixed length. Other lengths are no candidates: the one that happens to be fastest on these
            prompts would be favoured.
        resamples: of the intervals.
    """
    aside = [name for name in speeds if name.startswith(FIXED) and name != best_fixed and best_fixed in speeds]
    candidates = {name: of for name, of in speeds.items() if name not in aside}
    fastest = max(candidates.values(), key=lambda speed: speed.estimate)
    level = [name for name, speed in candidates.items() if speed.over(fastest, resamples).level]
    specs = {name: PolicySpec.of(name) for name in level}
    numbers = {name: 0 if name in NOT_DRAFTING else spec.complexity for name, spec in specs.items()}
    return min(level, key=lambda name: (numbers[name], specs[name].is_fitted, -candidates[name].estimate))


def _needed(have: int, speedup: float, low: float, high: float) -> int:
    """How many prompts tell a speed-up from plain decoding: its interval shrinks with their square root."""
    half = max(speedup - low, high - speedup)
    return max(have + 1, math.ceil(have * (half / max(abs(speedup - 1), WORTH_KNOWING)) ** 2))


def _with_more(command: str, have: int, need: int) -> str:
    """The command with its limits raised from ``have`` prompts to ``need``, or other prompts, and another folder."""
    limits = r"( --(?:limit|per-task|seconds)[= ])([\d.]+)"
    more, raised = re.subn(limits, lambda of: f"{of[1]}{math.ceil(float(of[2]) * need / have)}", command)
    if not raised:
        more = f"{re.sub(rf' --prompts{_VALUE}(?= |$)', '', more)} --prompts {MORE}"
    return re.sub(rf"( --out{_VALUE})/?(?= |$)", rf"\1-{need}", more)


def _with_longer_costs(command: str) -> str:
    """The command measuring costs again, for longer than it did."""
    before = re.search(r" --cost-seconds[= ]([\d.]+)", command)
    kept = re.sub(r" --(?:measure|cost-seconds[= ]\S+)(?= |$)", "", command)
    return f"{kept} --measure --cost-seconds {max(60.0, 2 * float(before[1]) if before else 0.0):g}"
