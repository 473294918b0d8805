"""The one recommendation of a recorded run: which setting, what it gains, and whether that is known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.policies.registry import NO_DRAFT, complexity_of
from draftgauge.replaying.rows import sum_by_prompt
from draftgauge.replaying.simulate import Replay
from draftgauge.replaying.splits import MIN_PROMPTS
from draftgauge.statistics.bootstrap import TEST_RESAMPLES
from draftgauge.statistics.paired import paired_gain

LEVEL = 0.01  # policies whose speeds differ by less are level
NOT_DRAFTING = (NO_DRAFT, "plain")


@dataclass(frozen=True)
class Verdict:
    """What to do with a pair on one machine or engine.

    Attributes:
        setting: the policy to use; ``no-draft`` or ``plain`` where drafting does not pay.
        speedup, low, high: modelled speed over plain decoding with its 95% interval by prompt (None of one prompt); of
            the fastest policy that drafts, ``drafting``, where the setting is not to draft.
        prompts: how many this stands on; of a server's counters how many drafts, as ``unit`` says.
        doubt: why the costs are not to be trusted; empty if they are.
        command: that recorded the run.
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

    @property
    def speculate(self) -> bool:
        return self.setting not in NOT_DRAFTING

    @property
    def unknown(self) -> str:
        """Why this is not known yet, and the command that would settle it; empty if it is known."""
        again = f"`{self.command}`" if self.command else "the `draftgauge profile` command of the run"
        if self.doubt:
            return (
                f"the costs are not to be trusted, {self.doubt}. To settle it, run {again} again with --measure, "
                "--cost-seconds 60 and nothing else on the machine"
            )
        more = f"To settle it, run {again} again with more prompts"
        if self.prompts < MIN_PROMPTS or self.low is None or self.high is None:
            return f"{self.prompts} of at least {MIN_PROMPTS} prompts are recorded. {more}"
        if self.low <= 1 <= self.high and self.drafting:
            return f"the interval reaches both sides of plain decoding. {more}"
        return ""

    def __str__(self) -> str:
        interval = "" if self.low is None else f" (95%: {self.low:.2f}x to {self.high:.2f}x)"
        figure = f"{self.speedup:.2f}x plain decoding{interval}, modelled on {self.prompts} {self.unit}"
        if self.speculate:
            known = f"Draft with {self.setting}: {figure}."
        elif self.drafting:
            known = f"Do not draft: the fastest policy, {self.drafting}, reaches {figure}."
        else:
            known = "Do not draft: no policy that drafts was tried."
        return f"Not known yet: {self.unknown}. So far: {known}" if self.unknown else known


def verdict_of(rows: Sequence[Mapping[str, Any]], command: str = "") -> Verdict:
    """The verdict on the rows of one run over all its prompts.

    Args:
        rows: with ``policy``, ``ratio_to_plain`` with ``_low`` and ``_high``, ``recommended``, ``prompts`` and
            ``cost_doubt``, as :func:`~draftgauge.replaying.evaluate.evaluate` makes them.
        command: that recorded the run.
    """
    chosen = next(row for row in rows if row["recommended"])
    shown = chosen
    if chosen["policy"] in NOT_DRAFTING:
        others = [
            row for row in rows if row["policy"] not in NOT_DRAFTING and not row["policy"].startswith("hindsight")
        ]
        shown = max(others, key=lambda row: row["ratio_to_plain"], default=chosen)
    drafting = "" if shown["policy"] in NOT_DRAFTING else shown["policy"]
    low, high = (shown[f"ratio_to_plain_{end}"] for end in ("low", "high"))
    if low is None or low != low or shown["prompts"] == 1:
        low = high = None
    doubt = chosen["cost_doubt"] or ""
    return Verdict(chosen["policy"], drafting, shown["ratio_to_plain"], low, high, chosen["prompts"], doubt, command)


def recommended(
    outcomes: Mapping[str, Replay], conversation: NDArray[np.int64], resamples: int = TEST_RESAMPLES
) -> str:
    """The name of the simplest policy that is level with the fastest one: whose gain over it is -1% or more, or has a
    95% interval that reaches 0. The simplest has the fewest tuned or fitted numbers
    (:func:`~draftgauge.policies.registry.complexity_of`), the faster one of equals.

    Args:
        outcomes: replays of the same prompts, by the spec of the policy.
        conversation: ``[prompts]`` whose turns are resampled together.
        resamples: of the intervals.
    """
    count = int(conversation.max()) + 1

    def summed(outcome: Replay) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        tokens, seconds = (sum_by_prompt(conversation, part, count) for part in (outcome.committed, outcome.seconds))
        return tokens, seconds

    speeds = {name: outcome.tokens_per_second for name, outcome in outcomes.items()}
    fastest = summed(outcomes[max(speeds, key=speeds.__getitem__)])
    level = []
    for name, outcome in outcomes.items():
        gain = paired_gain(*summed(outcome), *fastest, resamples=resamples)
        if gain.estimate >= -LEVEL or gain.high >= 0:
            level.append(name)
    return min(level, key=lambda name: (complexity_of(name), -speeds[name]))
