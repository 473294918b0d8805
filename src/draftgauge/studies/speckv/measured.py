"""What the records measured: tokens a step and tokens a second at each draft length, with intervals by resampling the
20 prompts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgauge.statistics.bootstrap import Comparison
from draftgauge.statistics.paired import paired_gain, ratio_interval
from draftgauge.studies.speckv.records import ALL, COMPRESSIONS, GAMMAS, Floats, Records, Timings

Rows = list[dict[str, Any]]
Mask = NDArray[np.bool_]
LONGEST, USUAL = max(GAMMAS), 4


def tokens_per_step_rows(records: Records) -> Rows:
    """Committed tokens over steps, at each compression (and all) and gamma."""
    rows: Rows = []
    for name, mask in of_compression(records.steps.compression):
        for gamma in GAMMAS:
            chosen = mask & (records.steps.gamma == gamma)
            value = ratio_interval(*_tokens_and_steps(records, chosen))
            row = {
                "compression": name,
                "gamma": gamma,
                "tokens_per_step": value.estimate,
                "low": value.low,
                "high": value.high,
            }
            rows.append({"finding": "tokens_per_step"} | row | {"steps": int(chosen.sum())})
    return rows


def tokens_per_second_rows(records: Records, timings: Timings) -> Rows:
    """Mean over prompts of the measured tokens/s, at each compression and gamma; ``best`` marks the fastest gamma."""
    rows: Rows = []
    for c, name in enumerate(COMPRESSIONS):
        speeds = {gamma: speed_by_prompt(records, timings, c, gamma) for gamma in GAMMAS}
        for gamma, speed in speeds.items():
            value = ratio_interval(speed, np.ones(len(speed)))
            row = {
                "compression": name,
                "gamma": gamma,
                "tokens_per_second": value.estimate,
                "low": value.low,
                "high": value.high,
            }
            rows.append({"finding": "tokens_per_second"} | row | {"best": gamma == best_gamma(records, timings, c)})
    return rows


def always_longest_rows(records: Records, timings: Timings) -> Rows:
    """Percent that drafting 8 tokens at every step gains over the fastest gamma and over 4; negative if it costs."""
    rows: Rows = []
    for c, name in enumerate(COMPRESSIONS):
        best = best_gamma(records, timings, c)
        row: dict[str, Any] = {"finding": "always_8", "compression": name, "best_gamma": best}
        for label, base in (("against_best", best), ("against_4", USUAL)):
            gain = speed_gain(records, timings, c, base)
            row |= {
                f"{label}_percent": 100 * gain.estimate,
                f"{label}_low": 100 * gain.low,
                f"{label}_high": 100 * gain.high,
            }
        rows.append(row)
    return rows


def best_gamma(records: Records, timings: Timings, compression: int) -> int:
    """The gamma with the most tokens/s of a compression, mean over prompts."""
    return max(GAMMAS, key=lambda gamma: speed_by_prompt(records, timings, compression, gamma).mean())


def speed_by_prompt(records: Records, timings: Timings, compression: int, gamma: int) -> Floats:
    """``[P]`` measured tokens/s."""
    runs = records.runs
    chosen = (runs.compression == compression) & (runs.gamma == gamma)
    speed = np.empty(records.prompts)
    speed[runs.prompt[chosen]] = timings.tokens_per_second[chosen]
    return speed


def speed_gain(records: Records, timings: Timings, compression: int, base: int) -> Comparison:
    """Gain in tokens/s of always 8 over another gamma, paired by prompt."""
    long, short = (speed_by_prompt(records, timings, compression, gamma) for gamma in (LONGEST, base))
    ones = np.ones(len(long))
    return paired_gain(long, ones, short, ones)


def step_gain(records: Records, mask: Mask) -> Comparison:
    """Gain in tokens a step of always 8 over always 4, paired by prompt, in the steps of the mask ``[S]``."""
    (long, long_steps), (short, short_steps) = (
        _tokens_and_steps(records, mask & (records.steps.gamma == gamma)) for gamma in (LONGEST, USUAL)
    )
    return paired_gain(long, long_steps, short, short_steps)


def of_compression(compression: NDArray[np.int64]) -> list[tuple[str, Mask]]:
    """A mask for each compression, and for all together."""
    masks = [(name, compression == c) for c, name in enumerate(COMPRESSIONS)]
    return [*masks, (ALL, np.ones(len(compression), np.bool_))]


def _tokens_and_steps(records: Records, chosen: Mask) -> tuple[Floats, Floats]:
    return records.by_prompt(records.steps.tokens, chosen), records.by_prompt(np.ones(len(chosen)), chosen)
